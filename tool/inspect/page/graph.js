// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// The picture of who calls whom: layers from clients to servers, drawn as SVG. All text is put in
// as text nodes.
'use strict';

// layers assigns nodes to layers, so that links lead from one layer to a later one. Links that close
// a circle are marked as back.
function layers(names, links) {
  const out = new Map(names.map(n => [n, []]));
  const sources = new Set(names);
  for (const l of links) {
    out.get(l.from).push(l);
    if (l.from !== l.to) sources.delete(l.to);
  }
  const state = new Map(), order = [];
  const visit = first => { // without recursion, which long chains would exhaust
    const stack = [[first, 0]];
    state.set(first, 'open');
    while (stack.length > 0) {
      const top = stack.at(-1), list = out.get(top[0]);
      if (top[1] === list.length) {
        state.set(top[0], 'done');
        order.unshift(top[0]);
        stack.pop();
        continue;
      }
      const l = list[top[1]++], seen = state.get(l.to);
      l.back = seen === 'open';
      if (!seen) {
        state.set(l.to, 'open');
        stack.push([l.to, 0]);
      }
    }
  };
  const surplus = new Map(names.map(n => [n, out.get(n).length]));
  for (const l of links) surplus.set(l.to, surplus.get(l.to) - 1);
  for (const n of [...sources, ...names.toSorted((a, b) => surplus.get(b) - surplus.get(a))]) if (!state.has(n)) visit(n);
  const rank = new Map(names.map(n => [n, 0]));
  for (const n of order) {
    for (const l of out.get(n)) if (!l.back) rank.set(l.to, Math.max(rank.get(l.to), rank.get(n) + 1));
  }
  for (const n of sources) { // a client stands next to its first server
    const next = out.get(n).filter(l => !l.back).map(l => rank.get(l.to) - 1);
    if (next.length > 0) rank.set(n, Math.min(...next));
  }
  return rank;
}

// arrange returns the position of each node, with across as the direction in a layer, and the points
// that each link passes.
function arrange(names, rank, links, size) {
  const rows = [], neighbours = new Map();
  const put = (id, r, space) => {
    (rows[r] ??= []).push(id);
    neighbours.set(id, { before: [], after: [], space });
  };
  for (const n of names) put(n, rank.get(n), size.node);
  const chains = new Map();
  links.forEach((l, i) => {
    if (l.back || l.from === l.to) return;
    const chain = [l.from];
    for (let r = rank.get(l.from) + 1; r < rank.get(l.to); r++) { // a link passes each layer between
      const id = '\0' + i + '\0' + r;
      put(id, r, size.gap);
      chain.push(id);
    }
    chain.push(l.to);
    for (let k = 1; k < chain.length; k++) {
      neighbours.get(chain[k - 1]).after.push(chain[k]);
      neighbours.get(chain[k]).before.push(chain[k - 1]);
    }
    chains.set(l, chain);
  });
  const at = new Map();
  const place = row => { // side by side, around 0
    let end = 0;
    for (const id of row) {
      at.set(id, end + neighbours.get(id).space / 2);
      end += neighbours.get(id).space + size.gap;
    }
    for (const id of row) at.set(id, at.get(id) - (end - size.gap) / 2);
  };
  rows.forEach(place);
  const wanted = (id, side) => {
    const list = neighbours.get(id)[side];
    return list.length > 0 ? list.reduce((sum, n) => sum + at.get(n), 0) / list.length : at.get(id);
  };
  for (let pass = 0; pass < 10; pass++) {
    const down = pass % 2 === 0;
    for (const row of down ? rows : rows.toReversed()) {
      const want = new Map(row.map(id => [id, wanted(id, down ? 'before' : 'after')]));
      if (pass < 8) row.sort((a, b) => want.get(a) - want.get(b));
      // Each as near to its neighbours as the others of the row permit.
      let end = -Infinity, shift = 0;
      for (const id of row) {
        const half = neighbours.get(id).space / 2, x = Math.max(want.get(id), end + half);
        at.set(id, x);
        shift += want.get(id) - x;
        end = x + half + size.gap;
      }
      for (const id of row) at.set(id, at.get(id) + shift / row.length);
    }
  }
  return { at, chains };
}

const svgName = 'http://www.w3.org/2000/svg';

function svg(tag, attributes, ...children) {
  const e = document.createElementNS(svgName, tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  e.append(...children);
  return e;
}

// fit shortens the middle of a text for a width in pixels.
function fit(text, width) {
  const most = Math.floor(width / 7.9), letters = [...text];
  if (letters.length <= most) return text;
  const begin = Math.floor((most - 1) / 3);
  return letters.slice(0, begin).join('') + '…' + letters.slice(letters.length - (most - 1 - begin)).join('');
}

// draw returns the picture for a width: layers side by side, or below each other if it is narrow. Nodes
// have id, title, label, lines and level; links have from, to, title, first, second, level, weight and
// choose. Coordinates are [along, across]: in the direction of most links, and in that of a layer.
function draw(nodes, links, width) {
  const upright = width < 700, H = 60, names = nodes.map(n => n.id), rank = layers(names, links), depth = Math.max(...rank.values()) + 1;
  const narrow = upright || width / depth < 270, W = narrow ? 136 : 164;
  const [along, across] = upright ? [H, W] : [W, H], step = along + (narrow ? 112 : 148);
  const xy = ([m, c]) => upright ? { x: c, y: m } : { x: m, y: c };
  const plan = arrange(names, rank, links, { node: across, gap: upright ? 18 : 30 });
  const spots = [...plan.at.values()], low = Math.min(...spots), high = Math.max(...spots);
  const around = links.filter(l => !plan.chains.has(l)), lane = upright ? 124 : 36, side = around.length > 0 ? 46 : 8;
  const base = high - low + across + 8 + lane / 2;
  const end = xy([(depth - 1) * step + along + 2 * side, high - low + across + 16 + around.length * lane]);
  const picture = svg('svg', { width: end.x, height: end.y, viewBox: `0 0 ${end.x} ${end.y}`, role: 'img', 'aria-label': `${nodes.length} workloads and ${links.length} edges, which the table below lists` });
  picture.style.minWidth = end.x * .72 + 'px'; // a little too large fits without scrolling
  const middle = (layer, at) => [layer * step + along / 2 + side, at - low + across / 2 + 8];
  const spot = new Map(nodes.map(n => [n.id, middle(rank.get(n.id), plan.at.get(n.id))]));
  const taken = [...spot.values()].map(xy).map(p => ({ x: p.x - W / 2, y: p.y - H / 2, w: W, h: H })); // and the tips of arrows
  for (const l of links) {
    const [m, c] = spot.get(l.to), p = xy([m - along / 2 - 5, c]);
    taken.push({ x: p.x - 6, y: p.y - 6, w: 12, h: 12 });
  }
  const common = (from, length, from2, length2) => Math.max(0, Math.min(from + length, from2 + length2) - Math.max(from, from2));
  const hidden = box => taken.reduce((sum, t) => sum + common(box.x, box.w, t.x, t.w) * common(box.y, box.h, t.y, t.h), 0);
  const outs = new Map(), ins = new Map();
  for (const l of links) {
    outs.set(l.from, (outs.get(l.from) ?? 0) + 1);
    ins.set(l.to, (ins.get(l.to) ?? 0) + 1);
  }
  const lines = svg('g', {}), texts = svg('g', {});
  for (const l of links) {
    const a = spot.get(l.from), b = spot.get(l.to), chain = plan.chains.get(l);
    const start = [a[0] + along / 2, a[1]], tip = [b[0] - along / 2, b[1]], stop = [tip[0] - 8, tip[1]];
    const curves = []; // four points each
    if (chain) {
      const stops = chain.map((id, k) => middle(rank.get(l.from) + k, plan.at.get(id)));
      stops[0] = start;
      stops[stops.length - 1] = stop;
      for (let k = 1; k < stops.length; k++) {
        const p = stops[k - 1], q = stops[k], m = (p[0] + q[0]) / 2;
        curves.push([p, [m, p[1]], [m, q[1]], q]);
      }
    } else { // against the direction: around all nodes, on a lane of its own
      const c = base + around.indexOf(l) * lane;
      curves.push([start, [start[0] + 48, start[1]], [start[0] + 48, c], [start[0], c]], [[start[0], c], [start[0], c], [tip[0], c], [tip[0], c]], [[tip[0], c], [tip[0] - 56, c], [tip[0] - 56, stop[1]], stop]);
    }
    const drawn = curves.map(c => c.map(xy)), text = p => p.x + ' ' + p.y;
    const d = 'M' + text(drawn[0][0]) + drawn.map(c => 'C' + c.slice(1).map(text).join(' ')).join('');
    const head = [tip, [tip[0] - 8, tip[1] - 4.5], [tip[0] - 8, tip[1] + 4.5]].map(xy).map(text).join(' ');
    const line = svg('g', { class: 'edge ' + l.level }, svg('title', {}, l.title), svg('path', { d, 'stroke-width': l.weight }), svg('polygon', { points: head }));
    line.addEventListener('click', l.choose);
    lines.append(line);
    // The label is where the curves of a node with several ones are apart, if that place is free, or the one that hides least.
    const places = [.6, .55, .5, .65, .45, .4, .7, .35, .3, .75, .25, .8, .2];
    if (outs.get(l.from) < ins.get(l.to)) places.forEach((t, i) => { places[i] = 1 - t; });
    const w = 6.6 * Math.max(l.first.length * (l.level === 'bad' || l.level === 'warn' ? 1.12 : 1), l.second.length * .88) + 4, h = l.second ? 32 : 18;
    const boxes = (chain ? drawn : [drawn[1]]).flatMap(c => places.map(t => {
      const p = bezier(c, t);
      return { x: p.x - w / 2, y: p.y - h / 2, w, h };
    }));
    const box = boxes.find(b => hidden(b) === 0) ?? boxes.reduce((best, b) => hidden(b) < hidden(best) ? b : best);
    taken.push(box);
    const x = box.x + w / 2, label = svg('g', { class: 'edge ' + l.level }, svg('title', {}, l.title),
      svg('rect', { x: box.x, y: box.y, width: w, height: h, rx: 4 }), svg('text', { class: 'first', x, y: box.y + 13 }, l.first));
    if (l.second) label.append(svg('text', { class: 'small', x, y: box.y + 27 }, l.second));
    label.addEventListener('click', l.choose);
    texts.append(label);
  }
  const boxes = svg('g', {});
  for (const n of nodes) {
    const p = xy(spot.get(n.id)), top = p.y - (n.lines.length > 1 ? 12 : 4);
    const group = svg('g', { class: 'node ' + n.level }, svg('title', {}, n.title),
      svg('rect', { x: p.x - W / 2, y: p.y - H / 2, width: W, height: H, rx: 9 }), svg('text', { class: 'label', x: p.x, y: top }, fit(n.label, W - 14)));
    n.lines.forEach((line, i) => group.append(svg('text', { class: 'small', x: p.x, y: top + 17 + 15 * i }, fit(line, (W - 10) * 1.12))));
    boxes.append(group);
  }
  picture.append(lines, boxes, texts);
  return picture;
}

// bezier returns the point of a curve at t from 0 to 1.
function bezier(c, t) {
  const f = [(1 - t) ** 3, 3 * (1 - t) ** 2 * t, 3 * (1 - t) * t ** 2, t ** 3];
  return { x: c.reduce((sum, p, i) => sum + f[i] * p.x, 0), y: c.reduce((sum, p, i) => sum + f[i] * p.y, 0) };
}
