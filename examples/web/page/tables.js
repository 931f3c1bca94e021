// Elements and tables of the page.

export const byId = (id) => document.getElementById(id);

export function element(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

export function options(select, names, first = null) {
  select.replaceChildren();
  if (first !== null) select.append(element("option", { value: "", textContent: first }));
  for (const name of names) select.append(element("option", { value: name, textContent: name }));
}

/** Show the nodes of a model; nodes that differ in their names only share a row. */
export function showNodes(rows, records) {
  const table = byId("node-table");
  const [head, body] = table.children;
  head.replaceChildren();
  body.replaceChildren();
  table.hidden = rows.length === 0;
  if (rows.length === 0) return;
  const columns = Object.keys(rows[0].cells).filter((column) => column !== "a patch");
  const heads = ["node", ...columns.map((column) => (column === "native" ? "runs by itself" : column)), "reason"];
  head.append(element("tr", {}, ...heads.map((text) => element("th", { scope: "col", textContent: text }))));
  for (const row of rows) {
    const cells = columns.map((column) => {
      const className = column === "native" ? row.cells.native : "";
      return element("td", { className, textContent: row.cells[column] });
    });
    const reason = element("td", { className: "reason", textContent: row.reason });
    body.append(element("tr", {}, nodeCell(row, records), ...cells, reason));
  }
}

/** The names of the nodes of a row; several are folded. Each has its record, to report it. */
function nodeCell({ graph, nodes }, records) {
  const cell = element("th", { scope: "row" });
  const place = graph ? ` in ${graph}` : "";
  const items = nodes.map(({ name, record }) =>
    element(
      "details",
      {},
      element("summary", { textContent: `${name}${place}` }),
      element("p", { textContent: "To report this node, copy its record, which contains no weights:" }),
      element("pre", { textContent: JSON.stringify(records[record], null, 1) }),
    ),
  );
  if (items.length === 1) {
    cell.append(items[0]);
  } else {
    const summary = element("summary", { textContent: `${nodes[0].name}${place} × ${nodes.length}` });
    cell.append(element("details", {}, summary, ...items));
  }
  return cell;
}

/** Show how long the models load and run, or why they do not. */
export function showRuns(before, after) {
  const time = (milliseconds) => `${milliseconds.toPrecision(3)} ms`;
  const row = (name, run) =>
    element(
      "tr",
      {},
      element("th", { scope: "row", textContent: name }),
      ...(run.error
        ? [element("td", { colSpan: 2, className: "no", textContent: run.error })]
        : [element("td", { textContent: time(run.loadTime) }), element("td", { textContent: time(run.runTime) })]),
    );
  const table = byId("run-table");
  table.replaceChildren(
    element("caption", { textContent: "onnxruntime-web, WASM, 1 thread; the shortest of 3 runs" }),
    element("tr", {}, ...["", "load", "run"].map((text) => element("th", { scope: "col", textContent: text }))),
    row("before", before),
    row("after", after),
  );
  table.hidden = false;
}

/** Show how far the patched model agrees with another answer. */
export function showDifferenceTable(rows, judge) {
  const table = byId("difference-table");
  const heads = ["output", "type", "shape", "largest difference", "of largest value", ""];
  const digits = (value) => (typeof value === "number" ? value.toPrecision(2) : value);
  table.replaceChildren(
    element("caption", { textContent: `After, compared with ${judge}` }),
    element("tr", {}, ...heads.map((text) => element("th", { scope: "col", textContent: text }))),
    ...rows.map((row) =>
      element(
        "tr",
        {},
        element("th", { scope: "row", textContent: row.output }),
        ...[row.type, row.shape.join(" × "), digits(row.difference), digits(row.of)].map((text) =>
          element("td", { textContent: text }),
        ),
        element("td", { className: row.agrees ? "yes" : "no", textContent: row.agrees ? "agrees" : "differs" }),
      ),
    ),
  );
  table.hidden = false;
}
