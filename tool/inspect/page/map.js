// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// The map of a large mesh: all services and who calls whom, from clients on the left to servers on the
// right, drawn on a canvas that can be moved and zoomed.
'use strict';

// distances returns how many calls each node is away from the clients that nobody calls, or from those that
// call most where there is no such client.
function distances(names, links) {
  const calls = new Map(names.map(n => [n, []])), callers = new Map(names.map(n => [n, 0])), away = new Map();
  for (const l of links) {
    calls.get(l.from).push(l.to);
    if (l.from !== l.to) callers.set(l.to, callers.get(l.to) + 1);
  }
  const visit = queue => {
    for (const n of queue) away.set(n, 0);
    for (const n of queue) { // it grows
      for (const to of calls.get(n)) {
        if (away.has(to)) continue;
        away.set(to, away.get(n) + 1);
        queue.push(to);
      }
    }
  };
  visit(names.filter(n => callers.get(n) === 0));
  for (const n of names.toSorted((a, b) => calls.get(b).length - callers.get(b) - calls.get(a).length + callers.get(a))) if (!away.has(n)) visit([n]);
  return away;
}

// spread returns the position of each node: a column for each distance, as wide as its nodes need, with
// nodes near to those that they call or are called by. It takes 17 ms for 1,000 nodes and 3,969 edges. For
// these the libraries were too slow: gonum's EadesR2 2 to 6 s, with other places each time, and a stack
// overflow for some parameters; its IsomapR2 13 s; Graphviz 37 s; dagre more than 4 minutes.
function spread(names, links, aspect) {
  const away = distances(names, links), rows = [], around = new Map(names.map(n => [n, []])), high = new Map();
  for (const n of names) (rows[away.get(n)] ??= []).push(n);
  for (const l of links) {
    around.get(l.from).push(l.to);
    around.get(l.to).push(l.from);
  }
  const place = row => row.forEach((n, i) => high.set(n, (i + .5) / row.length));
  rows.forEach(place);
  for (let pass = 0; pass < 6; pass++) {
    for (const row of pass % 2 === 0 ? rows : rows.toReversed()) {
      const want = new Map(row.map(n => [n, around.get(n).reduce((sum, o) => sum + high.get(o), high.get(n)) / (around.get(n).length + 1)]));
      row.sort((a, b) => want.get(a) - want.get(b));
      place(row);
    }
  }
  const gap = 3, cell = 3.2; // widths between layers and of a node, whose height is 1
  let tall = 4, wide = Infinity;
  for (; tall < names.length; tall++) {
    wide = rows.reduce((sum, row) => sum + Math.ceil(row.length / tall) * cell + gap, 0);
    if (wide <= aspect * tall) break;
  }
  const at = new Map();
  let left = 0;
  for (const row of rows) {
    const columns = Math.ceil(row.length / tall), most = Math.ceil(row.length / columns);
    row.forEach((n, i) => at.set(n, { x: left + (i % columns + .5) * cell, y: (Math.floor(i / columns) + .5) * tall / most }));
    left += columns * cell + gap;
  }
  return { at, wide: left - gap, tall };
}

// meshMap draws on a canvas. choose is called with the node that is clicked, and tell with the one that the
// pointer is on, if any.
function meshMap(canvas, choose, tell) {
  const pen = canvas.getContext('2d');
  let plan, nodes = [], links = [], known = new Set(), view = { x: 0, y: 0, scale: 1 }, moved = false, drag, over, waiting = false;

  const all = () => {
    const { width, height } = canvas.getBoundingClientRect(), scale = Math.min(width / (plan.wide + 4), height / (plan.tall + 2));
    view = { scale, x: (width - plan.wide * scale) / 2, y: (height - plan.tall * scale) / 2 };
    moved = false;
  };
  const later = () => {
    if (!waiting) requestAnimationFrame(paint);
    waiting = true;
  };
  const zoom = (factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) => {
    const scale = Math.max(1, Math.min(60, view.scale * factor)), f = scale / view.scale;
    view = { scale, x: x - (x - view.x) * f, y: y - (y - view.y) * f };
    moved = true;
    later();
  };
  const move = (x, y) => {
    view.x += x;
    view.y += y;
    moved = true;
    later();
  };
  const nearest = event => {
    const box = canvas.getBoundingClientRect(), x = (event.clientX - box.x - view.x) / view.scale, y = (event.clientY - box.y - view.y) / view.scale;
    let best, least = 1.2 + 4 / view.scale;
    for (const n of nodes) {
      const d = Math.hypot((n.at.x - x) / 1.5, n.at.y - y);
      if (d < least) [best, least] = [n, d];
    }
    return best;
  };

  function paint() {
    waiting = false;
    const { width, height } = canvas.getBoundingClientRect(), dots = devicePixelRatio;
    if (!plan || width === 0) return;
    if (canvas.width !== Math.round(width * dots) || canvas.height !== Math.round(height * dots)) {
      canvas.width = Math.round(width * dots);
      canvas.height = Math.round(height * dots);
    }
    if (!moved) all();
    const style = getComputedStyle(canvas), colour = name => style.getPropertyValue('--' + name).trim();
    const x = n => n.at.x * view.scale + view.x, y = n => n.at.y * view.scale + view.y;
    pen.setTransform(dots, 0, 0, dots, 0, 0);
    pen.clearRect(0, 0, width, height);
    const lines = (which, name, thick, alpha) => {
      pen.beginPath();
      for (const l of which) {
        pen.moveTo(x(l.a), y(l.a));
        pen.lineTo(x(l.b), y(l.b));
      }
      pen.strokeStyle = colour(name);
      pen.globalAlpha = alpha;
      pen.lineWidth = thick;
      pen.stroke();
      pen.globalAlpha = 1;
    };
    const of = (list, level) => list.filter(e => (e.level || '') === level);
    lines(links.filter(l => l.level !== 'bad' && l.level !== 'warn'), 'edge', .6, .35);
    lines(of(links, 'warn'), 'warn', 1.2, .8);
    lines(of(links, 'bad'), 'bad', 1.8, 1);
    if (over) lines(links.filter(l => l.a === over || l.b === over), 'accent', 1.4, 1);
    const size = Math.max(2, Math.min(7, view.scale * .34));
    for (const [level, name] of [['', 'muted'], ['warn', 'warn'], ['bad', 'bad']]) {
      pen.fillStyle = colour(name);
      pen.beginPath();
      for (const n of of(nodes, level)) {
        const r = level ? size * 1.3 : size;
        pen.rect(x(n) - r, y(n) - r, 2 * r, 2 * r);
      }
      pen.fill();
    }
    pen.textAlign = 'center';
    pen.font = '12px system-ui, "Noto Sans", sans-serif';
    const taken = [];
    const label = n => {
      const text = fit(n.label, 130), w = pen.measureText(text).width + 6, top = Math.max(0, y(n) - size * 1.3 - 17);
      if (n !== over && taken.some(t => Math.abs(t.x - x(n)) < (t.w + w) / 2 && Math.abs(t.top - top) < 16)) return;
      taken.push({ x: x(n), top, w });
      pen.fillStyle = colour('panel');
      pen.globalAlpha = .85;
      pen.fillRect(x(n) - w / 2, top, w, 15);
      pen.globalAlpha = 1;
      pen.fillStyle = colour(n === over ? 'accent' : n.level || 'text');
      pen.fillText(text, x(n), top + 12);
    };
    const seen = nodes.filter(n => x(n) > 0 && x(n) < width && y(n) > 0 && y(n) < height);
    if (over) label(over);
    (view.scale >= 32 ? seen : of(seen, 'bad')).forEach(label);
  }

  canvas.addEventListener('wheel', event => {
    if (!event.ctrlKey && document.activeElement !== canvas) return; // the page scrolls
    event.preventDefault();
    const box = canvas.getBoundingClientRect();
    zoom(Math.exp(-event.deltaY / 300), event.clientX - box.x, event.clientY - box.y);
  }, { passive: false });
  canvas.addEventListener('pointerdown', event => {
    drag = { x: event.clientX, y: event.clientY, far: 0 };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener('pointermove', event => {
    if (drag) {
      const [x, y] = [event.clientX - drag.x, event.clientY - drag.y];
      drag = { x: event.clientX, y: event.clientY, far: drag.far + Math.hypot(x, y) };
      if (drag.far > 4) move(x, y);
      return;
    }
    const now = nearest(event);
    if (now === over) return;
    over = now;
    tell(over);
    later();
  });
  canvas.addEventListener('pointerup', event => {
    const still = drag && drag.far <= 4 && nearest(event);
    drag = undefined;
    if (still) choose(still);
  });
  canvas.addEventListener('pointercancel', () => { drag = undefined; });
  canvas.addEventListener('pointerleave', () => {
    over = undefined;
    tell();
    later();
  });
  const reset = () => {
    all();
    later();
  };
  const act = { '+': () => zoom(1.5), '-': () => zoom(1 / 1.5), 0: reset, ArrowLeft: () => move(60, 0), ArrowRight: () => move(-60, 0), ArrowUp: () => move(0, 60), ArrowDown: () => move(0, -60) };
  canvas.addEventListener('keydown', event => {
    const does = act[event.key === '=' ? '+' : event.key];
    if (!does || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    does();
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', later);
  new ResizeObserver(later).observe(canvas);

  // show takes nodes with id, label and level, and links with from, to and level. The places stay as long
  // as there are the same ones.
  const show = (newNodes, newLinks) => {
    const ends = new Set(newLinks.map(l => l.from + '\0' + l.to));
    if (ends.size !== known.size || [...ends].some(e => !known.has(e))) {
      known = ends;
      plan = spread(newNodes.map(n => n.id).sort(), newLinks, Math.max(1, canvas.clientWidth / Math.max(1, canvas.clientHeight)));
    }
    const by = new Map();
    for (const n of newNodes) by.set(n.id, { ...n, at: plan.at.get(n.id) });
    over = over && by.get(over.id);
    nodes = [...by.values()];
    links = newLinks.map(l => ({ ...l, a: by.get(l.from), b: by.get(l.to) }));
    later();
  };
  // spot returns where a node is on the canvas.
  const spot = wanted => {
    const { at } = nodes.find(n => n.id === wanted);
    return [at.x * view.scale + view.x, at.y * view.scale + view.y];
  };
  return { show, spot, press: name => act[name]() };
}
