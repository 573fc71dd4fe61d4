"""What tests/gpu/run is measured by: its targets, beside what was found."""

# Share of the peer's product that ours reaches, and how much faster codes are than 16 bits.
OF_PRODUCTS = 0.6
OF_HALVES = 1.5
# The model and the batch that are compared whole.
BATCH = 64


def ratio(ours, peer):
    return ours / peer if ours and peer else None


def whole(result, model, kind):
    """How many times as fast as PyTorch's compiled model ours is."""
    ours = [
        row["ms"].get(BATCH, row["ms"].get(str(BATCH)))
        for row in result["throughput"]
        if (row["model"], row["numbers"]) == (model, kind)
    ]
    peers = result.get("peers", {}).get("peers", [])
    compiled = [
        row.get("ms", {}).get(BATCH, row.get("ms", {}).get(str(BATCH)))
        for row in peers
        if row["model"] == model and row.get("numbers") == kind and row["by"].endswith("compiled")
    ]
    return ratio(next(iter(compiled), None), next(iter(ours), None))


def targets(result):
    """Each target: its name, what it asks for, what was found (`None`: not measured), and whether that is enough."""
    ours, peer = result.get("products", {}), result.get("peers", {}).get("products", {})
    rows = [
        ("INT8 product, of PyTorch's", OF_PRODUCTS, ratio(ours.get("int8"), peer.get("int8"))),
        ("bf16 product, of PyTorch's", OF_PRODUCTS, ratio(ours.get("bf16"), peer.get("bf16"))),
        ("INT8 product, of our bf16", OF_HALVES, ratio(ours.get("int8"), ours.get("bf16"))),
    ]
    models = sorted({row["model"] for row in result["throughput"] if row["numbers"] == "bf16"})
    rows += [
        (f"{model} in bf16, batch {BATCH}, of PyTorch's compiled", 1.0, whole(result, model, "bf16"))
        for model in models
    ]
    return [
        {"target": name, "least": least, "found": found, "met": None if found is None else found >= least}
        for name, least, found in rows
    ]


def shown(rows):
    """The table as text."""
    lines = [f"\n{'targets':64} {'at least':>9} {'found':>9}"]
    for row in rows:
        found = "not measured" if row["found"] is None else f"{row['found']:8.2f}x {'' if row['met'] else 'MISSED'}"
        lines.append(f"{row['target']:64} {row['least']:8.2f}x {found}")
    return "\n".join(lines)
