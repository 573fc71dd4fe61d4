// Opens a report page in headless Chromium: axe-core looks for what some readers can't use, in light and dark, at the width
// of a phone and of a desktop. Then it sorts and filters the layers by the keyboard alone. Prints what it found as JSON; with
// a folder, leaves a screenshot of each there.
//
//   node look.mjs PAGE.html [FOLDER]
//
// It needs the npm packages playwright-core and axe-core (NODE_PATH may say where) and a Chromium: $CHROMIUM, or
// /usr/bin/chromium.
import { createRequire } from "node:module";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const require = createRequire(import.meta.url);
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const [page, folder] = process.argv.slice(2);
const flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"];

const profile = mkdtempSync(join(tmpdir(), "look-"));
const found = { requests: [], errors: [], looks: [], layers: null };

// What the keyboard does to the table of layers, if there is one.
async function layers(tab) {
  const heads = tab.locator("table.sortable thead th");
  if (!(await heads.count())) return null;
  // A column of numbers that every layer has.
  const titles = await heads.allTextContents();
  const place = titles.findIndex((title) => title.startsWith("Weights"));
  const last = heads.nth(place);
  const cells = () => tab.locator(`#layer-rows tr:not([hidden]) > :nth-child(${place + 1})`).allTextContents();
  const order = {};
  for (const way of ["ascending", "descending"]) {
    await last.locator("button").focus();
    await tab.keyboard.press("Enter");
    order[way] = { said: await last.getAttribute("aria-sort"), values: (await cells()).map(Number) };
  }
  await tab.locator("#filter").focus();
  await tab.keyboard.type("no layer has this");
  return { ...order, others: await heads.first().getAttribute("aria-sort"), filtered: (await cells()).length };
}

const browser = await chromium.launchPersistentContext(profile, {
  executablePath: process.env.CHROMIUM || "/usr/bin/chromium", args: flags, bypassCSP: true,
});
try {
  for (const colorScheme of ["light", "dark"]) {
    for (const width of [400, 1280]) {
      const tab = await browser.newPage();
      tab.on("request", (r) => { if (!r.url().startsWith("file:")) found.requests.push(r.url()); });
      tab.on("console", (m) => { if (m.type() === "error") found.errors.push(m.text()); });
      tab.on("pageerror", (e) => found.errors.push(String(e)));
      await tab.emulateMedia({ colorScheme });
      await tab.setViewportSize({ width, height: 900 });
      await tab.goto(pathToFileURL(resolve(page)).href);
      await tab.evaluate(axe);
      const { violations } = await tab.evaluate(() => globalThis.axe.run());
      const overflow = await tab.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      const seen = violations.map((v) => ({ rule: v.id, help: v.help, nodes: v.nodes.slice(0, 3).map((n) => n.html.slice(0, 200)) }));
      found.looks.push({ colorScheme, width, overflow, violations: seen });
      if (folder) {
        await tab.screenshot({ path: join(folder, `${basename(page, ".html")}-${colorScheme}-${width}.png`), fullPage: true });
      }
      found.layers = await layers(tab);
      await tab.close();
    }
  }
} finally {
  await browser.close();
  rmSync(profile, { recursive: true, force: true });
}
console.log(JSON.stringify(found, null, 1));
