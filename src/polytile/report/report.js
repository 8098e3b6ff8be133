"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const CLEAR = 0, ALONE = data.certainties.length - 2, NONE = ALONE + 1;
  const PAGE = 100;
  const COLOURS = 8;
  const CURVES = 6;
  const CUT = 16;

  /* Elements. All text goes in as text nodes, so nothing in a store can become markup. */

  const SVG = "http://www.w3.org/2000/svg";
  const fill = (node, attributes, children) => {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
    }
    node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
    return node;
  };
  const el = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
  const svg = (name, attributes, ...children) => fill(document.createElementNS(SVG, name), attributes, children);
  const button = (text, onclick, label) => el("button", { type: "button", class: "link", onclick, "aria-label": label }, text);

  /* Numbers, as the tables of `--text` write them. */

  const grouped = (value) => Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, " ");
  const micros = (value) => (value >= 99.95 ? grouped(value) : value >= 9.995 ? value.toFixed(1) : value.toFixed(2));
  const known = (value, write) => (value === null || value === undefined ? "–" : write(value));
  const ratio = (value) => value.toFixed(2);

  /* What the lists in the data mean (payload.py). */

  const entryOf = ([who, us, width, times, outcome, predicted, error, compile, registers, spilled, shared, live, detail]) => {
    const [name, config, origin, source] = data.who[who];
    return { name: data.names[name], config: data.configs[config], origin: data.origins[origin], source, us, width, times,
      outcome: data.outcomes[outcome], predicted, error, compile, registers, spilled, shared, live, detail };
  };
  const cellOf = (panel, place) => {
    const [sizes, chosen, certainty, entries, rivals] = panel.cells[place];
    return { panel, place, sizes, chosen, certainty, entries: entries.map(entryOf), rivals: rivals.map((i) => data.names[i]) };
  };
  const winnerOf = ([, chosen, , entries]) => (chosen < 0 ? null : data.names[data.who[entries[chosen][0]][0]]);
  const panels = data.panels.map(([name, digest, family, dtypes, layouts, at, sizes, cells, curves, roof], place) => {
    const varying = sizes.map((_, i) => i).filter((i) => new Set(cells.map((cell) => cell[0][i])).size > 1);
    const winners = new Map();
    let unsure = 0;
    for (const cell of cells) {
      const winner = winnerOf(cell);
      if (winner !== null) winners.set(winner, (winners.get(winner) || 0) + 1);
      if (cell[2] !== CLEAR && cell[2] < ALONE) unsure++;
    }
    const order = [...winners].sort((a, b) => b[1] - a[1]);
    const made = curves.map(([candidate, of, geomean, p95, worst, points]) =>
      ({ name: candidate < 0 ? "chosen for each size" : data.names[candidate], of, geomean, p95, worst, points }));
    return { place, name, digest, family, dtypes, layouts, at, device: data.places[at - 1][0],
      environment: data.places[at - 1][1], sizes, cells, roof, varying, unsure, winners: order, curves: made,
      one: made.slice(1).find((curve) => curve.points.length === curve.of) || null };
  });
  const sizesText = (panel, sizes) => panel.sizes.map((name, i) => `${name}=${sizes[i]}`).join(" ");
  const command = (pattern, panel, sizes) =>
    pattern.replace("{kernel}", () => (data.digits ? panel.digest.slice(0, data.digits) : panel.digest)).replace("{sizes}", () => sizes);

  /* A table that is filtered by words, sorted by its headings, and drawn a page at a time. */

  const listing = (host, caption, columns, rows, textOf) => {
    const texts = rows.map((row) => textOf(row).toLowerCase());
    let shown = rows.map((_, i) => i), pages = 1, sorted = null, down = false;
    const count = el("output", { class: "soft", "aria-live": "polite" });
    const body = el("tbody");
    const more = el("button", { type: "button", onclick: () => { pages++; draw(); } });
    const draw = () => {
      const visible = shown.slice(0, PAGE * pages);
      body.replaceChildren(...visible.map((i) => el("tr", {}, columns.map((column) =>
        el("td", { class: column.right ? "right" : null }, column.cell(rows[i]))))));
      count.textContent = `${grouped(shown.length)} of ${grouped(rows.length)}` +
        (visible.length < shown.length ? `, the first ${grouped(visible.length)} shown` : "");
      more.hidden = visible.length === shown.length;
      more.textContent = `Show ${PAGE} more`;
    };
    const compare = (a, b) => (a === b ? 0 : a === null || a === undefined ? 1 : b === null || b === undefined ? -1
      : (a < b ? -1 : 1) * (down ? -1 : 1));
    const select = () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      shown = [];
      texts.forEach((text, i) => { if (words.every((word) => text.includes(word))) shown.push(i); });
      if (sorted !== null) {
        const keys = new Map(shown.map((i) => [i, columns[sorted].key(rows[i])]));
        shown.sort((a, b) => compare(keys.get(a), keys.get(b)) || a - b);
      }
      pages = 1;
      draw();
    };
    const input = el("input", { type: "search", oninput: select, placeholder: "words, such as mm M=7" });
    const heads = columns.map((column, i) => el("th", { scope: "col", class: column.right ? "right" : null },
      column.key ? el("button", { type: "button", onclick: () => {
        down = sorted === i ? !down : Boolean(column.right);
        sorted = i;
        heads.forEach((head, j) => (j === i ? head.setAttribute("aria-sort", down ? "descending" : "ascending")
          : head.removeAttribute("aria-sort")));
        select();
      } }, column.head) : column.head));
    host.append(
      el("div", { class: "bar" }, el("label", {}, `Filter ${caption.toLowerCase()} `, input), count),
      el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
        el("table", {}, el("caption", {}, caption), el("thead", {}, el("tr", {}, heads)), body)), more);
    draw();
  };

  /* The list of kernels. */

  const drawKernels = () => listing(document.getElementById("kernels-view"), "Kernels", [
    { head: "kernel", key: (p) => p.name, cell: (p) => button(p.name, () => go(p.place)) },
    { head: "types", cell: (p) => p.dtypes },
    { head: "layouts", cell: (p) => p.layouts },
    ...(data.places.length > 1 ? [{ head: "place", right: true, key: (p) => p.at, cell: (p) => String(p.at) }] : []),
    { head: "sizes that vary", cell: (p) => p.varying.map((i) => p.sizes[i]).join(" ") },
    { head: "sizes", right: true, key: (p) => p.cells.length, cell: (p) => grouped(p.cells.length) },
    { head: "unsure", right: true, key: (p) => p.unsure, cell: (p) => grouped(p.unsure) },
    { head: "chosen most", cell: (p) => (p.winners.length ? `${p.winners[0][0]} (${p.winners[0][1]})` : "–") },
    { head: "one for all sizes", cell: (p) => (p.one ? p.one.name : "–") },
    { head: "× fastest", right: true, key: (p) => p.one && p.one.geomean, cell: (p) => known(p.one && p.one.geomean, ratio) },
    { head: "at worst", right: true, key: (p) => p.one && p.one.worst[0][0], cell: (p) => known(p.one && p.one.worst[0][0], ratio) },
  ], panels, (p) => [p.name, p.digest, p.family, p.dtypes, p.layouts, p.device, p.environment,
    ...p.winners.map(([name]) => name), ...p.varying.map((i) => p.sizes[i])].join(" "));

  /* The map of one kernel: colour and letter say who is chosen, hatching that this is not sure. */

  const letterOf = (place) => (place < 26 ? "" : String.fromCharCode(64 + Math.floor(place / 26))) + String.fromCharCode(65 + (place % 26));
  const look = (panel, cell) => {
    const place = panel.winners.findIndex(([name]) => name === winnerOf(cell));
    const pattern = cell[2] === CLEAR || cell[2] === NONE ? null : cell[2] === ALONE ? "dots" : "hatch";
    return { colour: place < 0 ? "c9" : `c${Math.min(place, COLOURS)}`, letter: place < 0 ? "–" : letterOf(place), pattern };
  };
  const box = (colour, pattern, letter, width, height) => [
    svg("rect", { class: colour, width, height }),
    pattern ? svg("rect", { class: pattern, width, height }) : null,
    svg("text", { x: width / 2, y: height / 2 + 4, "text-anchor": "middle" }, letter),
  ];
  const swatch = (colour, pattern, letter) =>
    svg("svg", { class: "swatch", width: 22, height: 18, "aria-hidden": "true" }, box(colour, pattern, letter, 22, 18));
  const patterns = () => svg("defs", {},
    svg("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse" }, svg("path", { d: "M0 6L6 0M-1 1L1 -1M5 7L7 5" })),
    svg("pattern", { id: "dots", width: 6, height: 6, patternUnits: "userSpaceOnUse" }, svg("circle", { cx: 3, cy: 3, r: 1 })));

  const drawMap = (panel, host) => {
    const byValues = [...panel.varying].sort((a, b) => count(panel, b) - count(panel, a));
    const [x, y] = byValues.length > 1 ? byValues : [byValues[0], null];
    const others = byValues.slice(2);
    const slices = new Map();
    panel.cells.forEach((cell, i) => {
      const name = others.map((k) => `${panel.sizes[k]}=${cell[0][k]}`).join(" ");
      if (!slices.has(name)) slices.set(name, []);
      slices.get(name).push(i);
    });
    const order = [...slices].sort((a, b) => b[1].length - a[1].length);
    const frame = el("div", { class: "scroll" });
    const show = (name) => frame.replaceChildren(grid(panel, x, y, slices.get(name)));
    if (others.length) {
      const select = el("select", { onchange: () => show(select.value) },
        order.map(([name, own]) => el("option", { value: name }, `${name} (${own.length})`)));
      host.append(el("div", { class: "bar" }, el("label", {}, "Map at ", select)));
    }
    host.append(frame, el("ul", { class: "legend", "aria-label": "Who is chosen" },
      panel.winners.map(([name, own], i) =>
        el("li", {}, swatch(`c${Math.min(i, COLOURS)}`, null, letterOf(i)), ` ${name} (${own})`)),
      el("li", {}, swatch("c9", "hatch", ""), " hatched: unsure (within noise, in doubt, under load)"),
      el("li", {}, swatch("c9", "dots", ""), " dotted: nothing to compare with")));
    show(order[0][0]);
    return (place) => {
      const own = order.find(([, cells]) => cells.includes(place));
      if (others.length && own) { host.querySelector("select").value = own[0]; show(own[0]); }
    };
  };
  const count = (panel, i) => new Set(panel.cells.map((cell) => cell[0][i])).size;
  const valuesOf = (panel, places, i) =>
    (i === null ? [null] : [...new Set(places.map((place) => panel.cells[place][0][i]))].sort((a, b) => a - b));

  const grid = (panel, x, y, places) => {
    const columns = valuesOf(panel, places, x), rows = valuesOf(panel, places, y);
    const width = columns.length > 30 ? 24 : 38, height = 24, left = 70, top = 48;
    const spots = new Map();
    const nodes = places.map((place, number) => {
      const cell = panel.cells[place], { colour, letter, pattern } = look(panel, cell);
      const column = columns.indexOf(cell[0][x]), row = y === null ? 0 : rows.indexOf(cell[0][y]);
      const label = `${sizesText(panel, cell[0])}: ${winnerOf(cell) || "nothing ran"}, ${data.certainties[cell[2]]}`;
      const node = svg("g", { class: "cell", role: "button", "aria-label": label, "data-place": place,
        tabindex: number ? -1 : 0, transform: `translate(${left + column * width},${top + row * height})`,
        onclick: () => go(panel.place, place) }, svg("title", {}, label), box(colour, pattern, letter, width, height));
      spots.set(`${column},${row}`, node);
      node.addEventListener("keydown", (event) => {
        const move = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); go(panel.place, place); }
        if (!move) return;
        event.preventDefault();
        for (let c = column + move[0], r = row + move[1]; c >= 0 && r >= 0 && c < columns.length && r < rows.length;
          c += move[0], r += move[1]) {
          const next = spots.get(`${c},${r}`);
          if (next) { node.setAttribute("tabindex", -1); next.setAttribute("tabindex", 0); next.focus(); return; }
        }
      });
      return node;
    });
    const heads = columns.map((value, i) => svg("text", { "text-anchor": "start",
      transform: `translate(${left + (i + 0.6) * width},${top - 6}) rotate(-45)` }, value));
    const sides = y === null ? [] : rows.map((value, i) =>
      svg("text", { "text-anchor": "end", x: left - 6, y: top + (i + 0.7) * height }, value));
    return svg("svg", { width: left + columns.length * width + 40, height: top + rows.length * height + 4, role: "group",
      "aria-label": `Who is chosen, by ${panel.sizes[x]}${y === null ? "" : ` and ${panel.sizes[y]}`}; arrow keys move, Enter opens` },
    svg("text", { x: 2, y: 14 }, `${panel.sizes[x]} →`), y === null ? null : svg("text", { x: 2, y: top + 10 }, `${panel.sizes[y]} ↓`),
    heads, sides, nodes);
  };

  /* One size: what runs, on what grounds, and how the others did. */

  const grounds = (cell) => {
    const winner = cell.entries[cell.chosen], fastest = cell.entries[0];
    if (!winner || winner.us === null) return "No candidate has a time at this size.";
    const width = known(winner.width, (value) => ` ± ${value.toFixed(1)} %`);
    const runs = `${winner.name} runs: ${micros(winner.us)} µs${winner.width === null ? "" : width}, source ${winner.origin || "not recorded"}. `;
    const why = winner === fastest ? "It is the fastest that was measured" :
      `The least time measured is ${fastest.name}'s, ${micros(fastest.us)} µs: × ${ratio(winner.us / fastest.us)} does not decide`;
    const rivals = cell.rivals.length ? `; equal within noise: ${cell.rivals.join(", ")}` : "";
    return `${runs}${why}; ${data.certainties[cell.certainty]}${rivals}.`;
  };
  const MORE = [["predicted", "predicted µs", micros], ["registers", "registers", grouped], ["spilled", "spilled bytes", grouped],
    ["shared", "shared bytes", grouped], ["error", "error", (value) => value.toExponential(1)],
    ["compile", "compile s", (value) => value.toFixed(2)], ["live", "live", grouped], ["detail", "message", String, true]];

  const whiskers = (entry, low, high) => {
    if (entry.us === null || entry.us === undefined) return null;
    const span = Math.log(high / low) || 1, at = (us) => 6 + (108 * Math.log(Math.max(us, low) / low)) / span;
    const part = Math.min(entry.width || 0, 99) / 100;
    return svg("svg", { width: 120, height: 14, "aria-hidden": "true" },
      svg("line", { class: "whisker", x1: at(entry.us * (1 - part)), x2: at(Math.min(entry.us * (1 + part), high)), y1: 7, y2: 7 }),
      svg("circle", { class: "dot", cx: at(entry.us), cy: 7, r: 3.5 }));
  };
  const drawCell = (panel, place) => {
    const cell = cellOf(panel, place), timed = cell.entries.filter((entry) => entry.us !== null);
    const low = timed.length ? timed[0].us * 0.95 : 1, high = timed.length ? timed[timed.length - 1].us * 1.05 : 1;
    const best = timed.length ? timed[0].us : null;
    const columns = [
      ["candidate", (entry) => (entry === cell.entries[cell.chosen] ? `${entry.name} (chosen)` : entry.name), true],
      ["source", (entry) => entry.origin, true],
      ["µs", (entry) => known(entry.us, micros)],
      ["± %", (entry) => known(entry.width, (value) => value.toFixed(1))],
      ["× fastest", (entry) => known(best && entry.us && entry.us / best, ratio)],
      ["fastest to slowest", (entry) => whiskers(entry, low, high), true],
      ["measured", (entry) => grouped(entry.times)],
      ["outcome", (entry) => entry.outcome, true],
      ...MORE.filter(([name]) => cell.entries.some((entry) => entry[name] !== undefined && entry[name] !== null))
        .map(([name, head, write, words]) => [head, (entry) => known(entry[name], write), words]),
      ["code", (entry) => entry.source, true],
      ["config", (entry) => entry.config, true],
    ];
    const side = (words) => (words ? null : "right");
    const regimes = panel.sizes.map((name, i) => `${name}=${data.regimes[cell.sizes[i]]}`).join("; ");
    return el("div", { id: "cell", tabindex: -1, "aria-live": "polite" },
      el("h3", {}, `${panel.name} at ${sizesText(panel, cell.sizes)}`),
      el("p", { id: "grounds" }, grounds(cell)),
      el("p", { class: "soft" }, `Its regime: ${regimes}.`),
      el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Candidates" }, el("table", {},
        el("caption", {}, "Candidates, fastest first"), el("thead", {}, el("tr", {},
          columns.map(([head, , words]) => el("th", { scope: "col", class: side(words) }, head)))),
        el("tbody", {}, cell.entries.map((entry, i) => el("tr", { class: i === cell.chosen ? "chosen" : null },
          columns.map(([, write, words]) => el("td", { class: side(words) }, write(entry)))))))),
      el("p", {}, "Look again: ", el("code", {}, command(data.why, panel, sizesText(panel, cell.sizes)))));
  };

  /* Sorted curves: what each candidate costs over the fastest, or what changed. */

  const curvesPlot = (label, lines, subject = "sizes") => {
    const width = 640, height = 220, left = 46, bottom = 30, top = 10;
    const all = lines.flatMap((line) => line.points), most = Math.max(1.1, ...all), high = Math.min(most, CUT), low = Math.max(Math.min(1, ...all), 1 / CUT);
    const at = (value) => top + (height - top - bottom) * (1 - Math.log(Math.min(Math.max(value, low), high) / low) / Math.log(high / low));
    const ticks = [1, 1.5, 2, 3, 5, 10, 16, 0.7, 0.5, 0.2, 0.1, 1.2, 0.9, 0.8, 1.1].filter((tick) => tick >= low && tick <= high)
      .reduce((kept, tick) => (kept.every((other) => Math.abs(at(other) - at(tick)) > 13) ? [...kept, tick] : kept), []);
    const across = (i, n) => left + ((width - left - 40) * i) / (n - 1);
    return svg("svg", { width, height, role: "img", "aria-label": label },
      ticks.map((tick) => [svg("line", { class: "axis", x1: left, x2: width - 40, y1: at(tick), y2: at(tick), "stroke-opacity": 0.5 }),
        svg("text", { x: left - 6, y: at(tick) + 4, "text-anchor": "end" }, `${tick} ×`)]),
      svg("path", { class: "axis", d: `M${left} ${top}V${height - bottom}H${width - 40}` }),
      svg("text", { x: left, y: height - 8 }, `${subject}, each curve sorted by itself, least first${most > CUT ? `; cut at ${CUT} ×` : ""}`),
      lines.map((line, i) => {
        const points = line.points.length > 1 ? line.points : [line.points[0], line.points[0]];
        const d = points.map((value, j) => `${j ? "L" : "M"}${across(j, points.length).toFixed(1)} ${at(value).toFixed(1)}`);
        return svg("path", { class: `curve s${i % CURVES}`, d: d.join("") });
      }));
  };
  const lineSample = (i) => svg("svg", { class: "swatch", width: 34, height: 10, "aria-hidden": "true" },
    svg("path", { class: `curve s${i % CURVES}`, d: "M1 5H33" }));

  const drawSlowdown = (panel, host) => {
    if (!panel.curves.length) return; // one size alone
    const lines = panel.curves.slice(0, CURVES);
    host.append(el("h3", {}, "Slowdown over the fastest"),
      el("div", { class: "scroll" }, curvesPlot("Slowdown over the fastest of the first candidates in the table below", lines)),
      el("ul", { class: "legend", "aria-label": "Curves" }, lines.map((line, i) => el("li", {}, lineSample(i), ` ${line.name}`))));
    listing(host, "Slowdown of candidates", [
      { head: "candidate", key: (c) => c.name, cell: (c) => c.name },
      { head: "sizes", right: true, key: (c) => c.points.length, cell: (c) => `${c.points.length} of ${c.of}` },
      { head: "× fastest", right: true, key: (c) => c.geomean, cell: (c) => ratio(c.geomean) },
      { head: "p95", right: true, key: (c) => c.p95, cell: (c) => ratio(c.p95) },
      { head: "worst", right: true, key: (c) => c.worst[0][0], cell: (c) => ratio(c.worst[0][0]) },
      { head: "worst at", cell: (c) => c.worst.filter(([slowdown]) => slowdown > 1).flatMap(([slowdown, place], i) => [i ? ", " : "",
        button(sizesText(panel, panel.cells[place][0]), () => go(panel.place, place)), ` ${ratio(slowdown)}`]) },
    ], panel.curves, (c) => c.name);
  };

  /* Predictions: what was expected over what was measured, each source's sorted. */

  const quantile = (sorted, share) => sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)];
  const geomean = (values) => Math.exp(values.reduce((sum, value) => sum + Math.log(value), 0) / values.length);
  const drawPredictions = (panel, host) => {
    const bySource = new Map();
    panel.cells.forEach((cell, place) => cell[3].map(entryOf).forEach((entry) => {
      if (!entry.us || !entry.predicted) return;
      if (!bySource.has(entry.origin)) bySource.set(entry.origin, []);
      bySource.get(entry.origin).push([entry.predicted / entry.us, place, entry.name]);
    }));
    if (!bySource.size) return;
    const rows = [...bySource].sort().map(([origin, own]) => {
      const sorted = own.sort((a, b) => a[0] - b[0]);
      return { name: origin || "not recorded", points: sorted.map(([value]) => value), ends: [sorted[0], sorted[sorted.length - 1]] };
    });
    host.append(el("h3", {}, "Predicted over measured time"),
      el("div", { class: "scroll" }, curvesPlot("Predicted over measured time of all candidates, by source", rows, "candidates at all sizes")),
      el("ul", { class: "legend", "aria-label": "Sources" }, rows.map((row, i) => el("li", {}, lineSample(i), ` ${row.name}`))));
    listing(host, "Predictions by source", [
      { head: "source", key: (r) => r.name, cell: (r) => r.name },
      { head: "times", right: true, key: (r) => r.points.length, cell: (r) => grouped(r.points.length) },
      { head: "predicted / measured", right: true, key: (r) => geomean(r.points), cell: (r) => ratio(geomean(r.points)) },
      { head: "p5", right: true, key: (r) => quantile(r.points, 0.05), cell: (r) => ratio(quantile(r.points, 0.05)) },
      { head: "p95", right: true, key: (r) => quantile(r.points, 0.95), cell: (r) => ratio(quantile(r.points, 0.95)) },
      { head: "farthest", cell: (r) => r.ends.flatMap(([value, place, name], i) => [i ? ", " : "",
        button(`${name} ${sizesText(panel, panel.cells[place][0])}`, () => go(panel.place, place)), ` ${ratio(value)}`]) },
    ], rows, (r) => r.name);
  };

  /* Rates: a roofline, of what runs at each size, under the best that was measured on the device. */

  const rateOf = (panel, place) => {
    const cell = panel.cells[place], us = timeOf(cell), work = cell[5];
    if (!us || !work) return null;
    const [operations, bytes] = work, [most, bandwidth] = panel.roof, seconds = us * 1e-6;
    const intensity = operations && operations / bytes;
    const roof = operations ? Math.min(most, intensity * bandwidth) : bandwidth;
    const rate = (operations || bytes) / seconds;
    return { place, intensity, x: intensity || bytes, y: rate, operations: operations && operations / seconds,
      bytes: bytes / seconds, share: rate / roof };
  };
  const logTicks = (low, high) => [...Array(30).keys()].flatMap((i) => (high / low > 300 ? [1] : [1, 2, 5]).map((head) => Number(`${head}e${i - 6}`)))
    .filter((tick) => tick >= low && tick <= high);
  const roofPlot = (panel, points) => {
    const width = 640, height = 240, left = 64, bottom = 36, top = 10, counted = points[0].intensity !== null;
    const [most, bandwidth] = panel.roof, roofAt = (x) => (counted ? Math.min(most, x * bandwidth) : bandwidth);
    const xs = points.map((point) => point.x), ys = points.map((point) => point.y);
    const x0 = Math.min(...xs) / 1.5, x1 = Math.max(...xs) * 1.5, y1 = Math.max(...xs.map(roofAt), ...ys) * 1.3, y0 = Math.min(...ys) / 1.5;
    const log = (value, low, high) => Math.log(value / low) / Math.log(high / low);
    const across = (x) => left + (width - left - 20) * log(x, x0, x1), down = (y) => top + (height - top - bottom) * (1 - log(Math.max(y, y0), y0, y1));
    const knee = counted ? Math.min(Math.max(most / bandwidth, x0), x1) : x0;
    return svg("svg", { width, height, role: "img", "aria-label": "Rates at all sizes under the highest on record; the list below has the numbers" },
      svg("path", { class: "axis", d: `M${left} ${top}V${height - bottom}H${width - 20}` }),
      logTicks(x0, x1).map((tick) => svg("text", { x: across(tick), y: height - 20, "text-anchor": "middle" }, tick < 1 ? tick : grouped(tick))),
      logTicks(y0, y1).map((tick) => [svg("line", { class: "axis", x1: left, x2: width - 20, y1: down(tick), y2: down(tick), "stroke-opacity": 0.5 }),
        svg("text", { x: left - 6, y: down(tick) + 4, "text-anchor": "end" }, String(tick / 1e9))]),
      svg("text", { x: left, y: height - 4 }, counted ? "operations per byte; upwards: Gop/s" : "bytes of a call; upwards: GB/s"),
      svg("path", { class: "curve s0", d: [x0, knee, x1].map((x, i) => `${i ? "L" : "M"}${across(x).toFixed(1)} ${down(roofAt(x)).toFixed(1)}`).join("") }),
      points.map((point) => svg("circle", { class: "dot", cx: across(point.x).toFixed(1), cy: down(point.y).toFixed(1), r: 3 },
        svg("title", {}, sizesText(panel, panel.cells[point.place][0])))));
  };
  const drawRates = (panel, host) => {
    const points = panel.cells.map((_, place) => rateOf(panel, place)).filter((point) => point !== null);
    if (!points.length) return;
    const giga = (value) => (value / 1e9).toFixed(1);
    host.append(el("h3", {}, "Rates under the device's roof"), el("div", { class: "scroll" }, roofPlot(panel, points)));
    listing(host, "Rates", [
      { head: "sizes", key: (r) => panel.cells[r.place][0][panel.varying[0] || 0],
        cell: (r) => button(sizesText(panel, panel.cells[r.place][0]), () => go(panel.place, r.place)) },
      { head: "operations per byte", right: true, key: (r) => r.intensity, cell: (r) => known(r.intensity, (value) => value.toFixed(1)) },
      { head: "Gop/s", right: true, key: (r) => r.operations, cell: (r) => known(r.operations, giga) },
      { head: "GB/s", right: true, key: (r) => r.bytes, cell: (r) => giga(r.bytes) },
      { head: "of the roof", right: true, key: (r) => r.share, cell: (r) => `${Math.round(100 * r.share)} %` },
    ], points, (r) => sizesText(panel, panel.cells[r.place][0]));
  };

  const drawPanel = (panel) => {
    const host = document.getElementById("kernel-view");
    document.getElementById("h-kernel").textContent = panel.name;
    const said = [["digest", panel.digest], ["family", panel.family], ["types", panel.dtypes], ["layouts", panel.layouts],
      ["device", panel.device], ["environment", panel.environment]].filter(([, value]) => value);
    const [map, detail, list, slow, foreseen, rates] = [...Array(6)].map(() => el("div"));
    host.replaceChildren(
      el("p", { class: "soft" }, said.map(([name, value]) => `${name} ${value}`).join(" · ")),
      el("p", {}, "Its measurements: ", el("code", {}, command(data.show, panel, ""))),
      map, detail, list, slow, foreseen, rates);
    const reveal = panel.varying.length ? drawMap(panel, map) : () => {};
    listing(list, "Sizes", [
      { head: "sizes", key: (i) => panel.cells[i][0][panel.varying[0] || 0],
        cell: (i) => button(sizesText(panel, panel.cells[i][0]), () => go(panel.place, i)) },
      { head: "chosen", key: (i) => winnerOf(panel.cells[i]), cell: (i) => {
        const { colour, letter, pattern } = look(panel, panel.cells[i]);
        return [swatch(colour, pattern, letter), ` ${winnerOf(panel.cells[i]) || "–"}`];
      } },
      { head: "µs", right: true, key: (i) => timeOf(panel.cells[i]), cell: (i) => known(timeOf(panel.cells[i]), micros) },
      { head: "certainty", key: (i) => panel.cells[i][2], cell: (i) => data.certainties[panel.cells[i][2]] },
      { head: "candidates", right: true, key: (i) => panel.cells[i][3].length, cell: (i) => String(panel.cells[i][3].length) },
    ], panel.cells.map((_, i) => i), (i) => [sizesText(panel, panel.cells[i][0]), winnerOf(panel.cells[i]) || "",
      data.certainties[panel.cells[i][2]]].join(" "));
    drawSlowdown(panel, slow);
    drawPredictions(panel, foreseen);
    drawRates(panel, rates);
    return { panel, reveal, detail, map };
  };
  const timeOf = ([, chosen, , entries]) => (chosen < 0 ? null : entries[chosen][1]);

  /* What changed between two stores. */

  const drawChanges = () => {
    const host = document.getElementById("changes-view"), changes = data.changes;
    if (!changes.length) { host.append(el("p", {}, "No size has a time in both.")); return; }
    const points = changes.map((change) => change[6]).reverse();
    host.append(el("div", { class: "scroll" }, curvesPlot("Time after over time before, all sizes", [{ points }])),
      el("p", { class: "soft" }, "Time after over time before; below 1 × a size became faster."));
    listing(host, "Changes", [
      { head: "kernel", key: (c) => panels[c[0]].name,
        cell: (c) => button(`${panels[c[0]].name} ${sizesText(panels[c[0]], panels[c[0]].cells[c[1]][0])}`, () => go(c[0], c[1])) },
      { head: "before", cell: (c) => data.names[c[2]] },
      { head: "µs before", right: true, key: (c) => c[3], cell: (c) => micros(c[3]) },
      { head: "after", cell: (c) => (c[4] === c[2] ? "the same" : data.names[c[4]]) },
      { head: "µs after", right: true, key: (c) => c[5], cell: (c) => micros(c[5]) },
      { head: "×", right: true, key: (c) => c[6], cell: (c) => ratio(c[6]) },
      { head: "noise %", right: true, key: (c) => c[7], cell: (c) => known(c[7], (value) => value.toFixed(1)) },
      { head: "verdict", key: (c) => c[8], cell: (c) => c[8] },
      { head: "differs in", cell: (c) => c[9] },
    ], changes, (c) => [panels[c[0]].name, sizesText(panels[c[0]], panels[c[0]].cells[c[1]][0]), data.names[c[2]], data.names[c[4]],
      c[8], c[9]].join(" "));
  };

  /* When what was measured: a row for each place or worker, a bar for each span. */

  const secondsText = (value) => (value < 120 ? `${value.toFixed(1)} s` : value < 7200 ? `${(value / 60).toFixed(0)} min` : `${(value / 3600).toFixed(1)} h`);
  const spanText = ([lane, , seconds, rows, kernels, sizes, text, , began]) => `${data.times[1][lane]}, ${began}, ${secondsText(seconds)}: ` +
    `${text || `${grouped(sizes)} sizes of ${grouped(kernels)} kernels`}, ${grouped(rows)} measurement${rows === 1 ? "" : "s"}`;
  const drawTimes = () => {
    const [what, lanes, spans] = data.times, host = document.getElementById("times-view");
    const width = 900, left = 190, row = 22, top = 6, end = Math.max(...spans.map((span) => span[1] + span[2]), 1e-3);
    const across = (seconds) => left + ((width - left - 10) * seconds) / end, height = top + lanes.length * row;
    const bar = (span) => svg("g", {}, svg("title", {}, spanText(span)), svg("rect", { class: span[3] ? "bar" : "bar none",
      x: across(span[1]).toFixed(1), y: top + span[0] * row + 3, width: Math.max(2, across(span[2]) - left).toFixed(1), height: row - 6 }));
    const tick = (part) => [svg("line", { class: "axis", x1: across(part * end), x2: across(part * end), y1: top, y2: height, "stroke-opacity": 0.5 }),
      svg("text", { x: across(part * end), y: height + 16, "text-anchor": part === 1 ? "end" : part ? "middle" : "start" }, secondsText(part * end))];
    host.append(
      el("div", { class: "scroll" }, svg("svg", { width, height: height + 24, role: "img",
        "aria-label": `When each ${what} measured; the list below has the times` },
      lanes.map((lane, i) => svg("text", { x: 0, y: top + i * row + 15 }, lane)), [0, 0.25, 0.5, 0.75, 1].map(tick), spans.map(bar))),
      el("p", { class: "soft" }, `From ${spans.map((span) => span[8]).sort()[0]} on. Framed bars have no measurement.`));
    listing(host, "Spans", [
      { head: what, key: (s) => s[0], cell: (s) => lanes[s[0]] },
      { head: "began", key: (s) => s[1], cell: (s) => s[8] },
      { head: "s", right: true, key: (s) => s[2], cell: (s) => s[2].toFixed(1) },
      { head: "kernels", right: true, key: (s) => s[4], cell: (s) => grouped(s[4]) },
      { head: "sizes", right: true, key: (s) => s[5], cell: (s) => grouped(s[5]) },
      { head: "measurements", right: true, key: (s) => s[3], cell: (s) => grouped(s[3]) },
      { head: "what", cell: (s) => (s[7] ? button(s[6], () => go(...s[7])) : s[6]) },
    ], spans, (s) => `${lanes[s[0]]} ${s[8]} ${s[6]}`);
  };

  /* A package: its choices in lists, and of each kernel a strip, sizes in order; a hatched cell is predicted. */

  const drawPackage = () => {
    const host = document.getElementById("choices-view");
    for (const [kernel, forms, cells] of data.strips) {
      const width = 22, names = forms.map((name, i) => `${letterOf(i)} ${name}`).join(", ");
      host.append(el("h3", {}, kernel), el("div", { class: "scroll" },
        svg("svg", { width: cells.length * width, height: 24, role: "img", "aria-label": `Forms of ${kernel}: ${names}; the list below says where each runs` },
          cells.map(([sizes, form, measured], i) => svg("g", { transform: `translate(${i * width},0)` },
            svg("title", {}, `${sizes}: ${forms[form]}${measured ? "" : ", predicted"}`),
            box(`c${Math.min(form, COLOURS)}`, measured ? null : "hatch", letterOf(form), width, 24))))),
      el("ul", { class: "legend", "aria-label": `Forms of ${kernel}` }, forms.map((name, i) =>
        el("li", {}, swatch(`c${Math.min(i, COLOURS)}`, null, letterOf(i)), ` ${name}`)), el("li", {}, swatch("c9", "hatch", ""), " hatched: predicted")));
    }
    for (const [name, caption, heads, rows] of data.lists)
      listing(document.getElementById(`${name}-view`), caption, heads.map((head, i) => ({ head, right: rows.some((row) => typeof row[i] === "number"),
        key: (row) => row[i], cell: (row) => row[i] })),
        rows, (row) => row.join(" "));
  };

  /* The memories of a package's call: across the calls of kernels, upwards bytes; the arena below, others above it. */

  const drawMemory = () => {
    const { calls, memories, at } = data.memory, host = document.getElementById("memory-view"), frame = el("div", { class: "scroll" }), list = el("div");
    const draw = ({ bytes, offsets, arena }) => {
      const width = 900, height = 260, left = 90, top = 8, edge = calls.length || 1;
      let end = arena;
      const places = offsets.map((offset, i) => (offset === null ? (end += bytes[i]) - bytes[i] : offset));
      const across = (call) => left + ((width - left - 10) * call) / edge, up = (value) => top + (height - top - 24) * (1 - value / (end || 1));
      const until = (i) => Math.min(memories[i][2], edge), since = (i) => Math.min(memories[i][1], edge - 1);
      const said = (i) => `${memories[i][0]}: ${grouped(bytes[i])} bytes, ${offsets[i] === null ? "by itself" : `at byte ${grouped(offsets[i])} of the arena`}, ` +
        `from call ${since(i) + 1} (${calls[since(i)]}) to call ${until(i)} (${calls[until(i) - 1]})`;
      frame.replaceChildren(svg("svg", { width, height, role: "img", "aria-label": "Memories over the calls of kernels; the list below has them all" },
        svg("path", { class: "axis", d: `M${left} ${top}V${height - 24}H${width - 10}` }),
        [0, arena, end].map((value, i) => (i && !value ? null : svg("text", { x: left - 6, y: up(value) + 4, "text-anchor": "end" }, grouped(value)))),
        svg("text", { x: left, y: height - 6 }, `bytes over ${grouped(edge)} calls of kernels, in order; framed: by itself, outside of the arena`),
        memories.map((_, i) => svg("g", {}, svg("title", {}, said(i)), svg("rect", { class: offsets[i] === null ? "bar none" : `c${i % COLOURS} edge`,
          x: across(since(i)).toFixed(1), width: (across(until(i)) - across(since(i))).toFixed(1), y: up(places[i] + bytes[i]).toFixed(1),
          height: (up(places[i]) - up(places[i] + bytes[i])).toFixed(1) })))));
      list.replaceChildren();
      listing(list, "Memories", [
        { head: "memory", key: (i) => memories[i][0], cell: (i) => memories[i][0] },
        { head: "bytes", right: true, key: (i) => bytes[i], cell: (i) => grouped(bytes[i]) },
        { head: "at byte", right: true, key: (i) => offsets[i], cell: (i) => known(offsets[i], grouped) },
        { head: "from call", key: since, cell: (i) => `${since(i) + 1}: ${calls[since(i)]}` },
        { head: "to call", key: until, cell: (i) => `${until(i)}: ${calls[until(i) - 1]}` },
      ], memories.map((_, i) => i), said);
    };
    const select = el("select", { onchange: () => draw(at[select.value]) },
      at.map(({ sizes }, i) => el("option", { value: i }, Object.entries(sizes).map(([name, value]) => `${name}=${value}`).join(" ") || "all sizes")));
    host.append(el("div", { class: "bar" }, el("label", {}, "Memory at ", select)), frame, list);
    draw(at[0]);
  };

  /* The address says what is open: #kernel/3 or #kernel/3/17. */

  let open = null;
  const go = (panel, place) => {
    const address = `#kernel/${panel}${place === undefined ? "" : `/${place}`}`;
    if (location.hash === address) follow();
    else location.hash = address;
  };
  const follow = () => {
    const [, panelText, placeText] = location.hash.match(/^#kernel\/(\d+)(?:\/(\d+))?$/) || [];
    const panel = panels[panelText];
    if (!panel) return;
    const section = document.getElementById("kernel"), fresh = !open || open.panel !== panel;
    section.hidden = false;
    if (fresh) open = drawPanel(panel);
    const place = placeText !== undefined ? Number(placeText) : panel.cells.length === 1 ? 0 : null;
    const fits = place !== null && place < panel.cells.length;
    open.detail.replaceChildren(...(fits ? [drawCell(panel, place)] : []));
    if (fits && !open.map.querySelector(`[data-place="${place}"]`)) open.reveal(place);
    for (const node of open.map.querySelectorAll(".cell")) node.classList.toggle("open", fits && node.dataset.place === String(place));
    const target = fits && placeText !== undefined ? document.getElementById("cell") : section;
    target.focus({ preventScroll: true });
    target.scrollIntoView({ block: fits && !fresh ? "nearest" : "start" });
  };

  const theme = document.getElementById("theme");
  const kept = (key, value) => { /* across loads of a page that is written again and again */
    try { return value === undefined ? sessionStorage.getItem(key) : sessionStorage.setItem(key, value); } catch { return null; }
  };
  const colour = () => { document.documentElement.style.colorScheme = theme.value; };
  theme.addEventListener("change", () => { colour(); kept("theme", theme.value); });
  if (data.every) {
    theme.value = kept("theme") || theme.value;
    colour();
    setInterval(() => { /* not while somebody has a filter in force */
      if (![...document.querySelectorAll("input")].some((input) => input.value)) location.reload();
    }, data.every * 1000);
  }
  document.body.append(svg("svg", { width: 0, height: 0, "aria-hidden": "true" }, patterns()));
  if (data.changes) drawChanges();
  if (data.times) drawTimes();
  if (data.memory) drawMemory();
  if (data.lists) drawPackage();
  else drawKernels();
  addEventListener("hashchange", follow);
  follow();
})();
