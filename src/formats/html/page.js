// The page is complete without this: it sorts and filters the layers, and copies commands.
"use strict";

for (const button of document.querySelectorAll("button.copy")) {
  button.hidden = !navigator.clipboard;
  button.addEventListener("click", async () => {
    const text = button.previousElementSibling.textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(button.previousElementSibling);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
}

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  heads.forEach((head, column) => {
    const button = head.firstElementChild;
    button.disabled = false;
    const number = head.classList.contains("num");
    button.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const keyed = [...body.rows].map((row) => [row.cells[column].textContent, row]);
      // Cells without a value are last in both directions.
      keyed.sort(([a], [b]) => {
        if (a === "" || b === "") return (a === "") - (b === "");
        return sign * (number ? a - b : a.localeCompare(b, undefined, { numeric: true }));
      });
      body.append(...keyed.map(([, row]) => row));
    });
  });
}

const filter = document.getElementById("filter");
if (filter) {
  const rows = [...document.getElementById("layer-rows").rows];
  filter.parentElement.hidden = false;
  filter.addEventListener("input", () => {
    const wanted = filter.value.trim().toLowerCase();
    let shown = 0;
    for (const row of rows) {
      const hit = [...row.cells].some((cell) => cell.textContent.toLowerCase().includes(wanted));
      row.hidden = !hit;
      shown += hit;
    }
    document.getElementById("filtered").textContent = wanted ? `${shown} of ${rows.length} layers` : "";
  });
}
