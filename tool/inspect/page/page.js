// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// The page asks the dashboard for JSON and shows it. Whatever comes from the mesh is untrusted: it
// is put into the page as text nodes only.
'use strict';

const maxRows = 100, maxEdges = 80, idleAfter = 60_000;

const id = name => document.getElementById(name);

function el(tag, attributes, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  e.append(...children);
  return e;
}

// panels are what the dashboard serves, by name, each with the function that shows it.
const panels = {
  status: { section: 'status', show: showProxies },
  top: { section: 'top', show: showTraffic },
  outage: { section: 'outages', show: showOutages },
  findings: { section: 'findings', show: showFindings },
  history: { section: 'history', show: showChanges },
};

let ahead = 0; // of the dashboard's clock, in milliseconds
const now = () => Date.now() + ahead;

// poll asks for a panel, and again when the dashboard collects it next. A hidden tab does not ask.
async function poll(name) {
  const panel = panels[name];
  clearTimeout(panel.timer);
  if (document.hidden || panel.asking) return;
  panel.asking = true;
  let next = 5;
  try {
    const response = await fetch('api/' + name, { signal: AbortSignal.timeout(120_000) });
    const text = await response.text();
    if (!response.ok) throw new Error(text);
    const skew = Date.parse(response.headers.get('Date')) - Date.now();
    ahead = Math.abs(skew) < 2000 ? 0 : skew; // the header has seconds
    panel.answer = JSON.parse(text);
    panel.lost = '';
    next = panel.answer.every_seconds || next;
  } catch (error) {
    panel.lost = error.message || 'no answer';
  }
  panel.asking = false;
  panel.timer = setTimeout(poll, next * 1000 + 50, name);
  const others = name === 'status' && (broken() || noProxies()) !== panel.was; // whose notes depend on it
  if (name === 'status') panel.was = broken() || noProxies();
  (others ? Object.keys(panels) : [name]).forEach(show);
}

// broken returns why there is no newer state of the proxies, which the banner says.
function broken() {
  const { answer, lost } = panels.status;
  return lost ? 'The dashboard does not answer: is outrigger dashboard running?' : answer?.error ?? '';
}

const noProxies = () => panels.status.answer?.data?.control_planes.every(c => !c.error && !c.proxies?.length) ? 'No proxy is connected.' : '';

function show(name) {
  const panel = panels[name], section = id(panel.section), note = section.querySelector('.note');
  const error = panel.lost ? 'The dashboard does not answer.' : panel.answer?.error, silent = broken(), none = noProxies();
  section.classList.toggle('stale', Boolean(error));
  note.classList.toggle('error', Boolean(error && !silent && !none));
  note.textContent = '';
  wrong[name] = [];
  if (name === 'top') section.querySelector('.content').hidden = panel.answer?.data === undefined || Boolean(none);
  if (panel.answer?.data !== undefined) panel.show(panel.answer.data, note);
  if (error) note.textContent = silent ? (panel.answer?.data === undefined ? 'No data.' : '') : none && name !== 'findings' && name !== 'history' ? none : error;
  showWrong();
  tick();
}

// ---- what is wrong

// wrong are the problems that each panel shows, the worst first: [level, what it is, what it is about, text, what a click does].
const wrong = {}, mostWrong = 4;

function showWrong() {
  const known = Object.values(panels).every(p => p.answer?.data !== undefined || p.answer?.error);
  const all = ['status', 'top', 'findings', 'outage'].flatMap(name => wrong[name] ?? []).sort((a, b) => (a[0] !== 'bad') - (b[0] !== 'bad'));
  const lines = (all.length > 0 ? [...all, ...wrong.history ?? []] : [['good', 'nothing', '', 'No proxy rejects its configuration, no request fails, no certificate expires soon, and no object has an error.']]);
  id('wrong').hidden = panels.status.answer?.data === undefined || all.length === 0 && (!known || noProxies() || broken());
  id('wrong').classList.toggle('stale', Boolean(broken()));
  keep(id('wrong-list'), lines.map(([level, what, about, text, act]) => {
    if (!act) return el('li', {}, badge(what, level), text);
    const button = el('button', { type: 'button', class: 'link', 'data-key': what + ' ' + about }, el('strong', {}, about), about && text ? ': ' + text : text);
    button.addEventListener('click', act);
    return el('li', {}, badge(what, level), button);
  }));
}

// some returns the first problems of a list, and a line that says how many there are besides.
function some(list, what, many, section) {
  const more = list.length - mostWrong;
  return more <= 0 ? list : [...list.slice(0, mostWrong), [list[mostWrong][0], what, '', `and ${more} more ${many}`, () => goTo(section)]];
}

function goTo(section) {
  id(section).scrollIntoView({ block: 'start' });
  id(section).querySelector('[tabindex]')?.focus({ preventScroll: true });
}

// keep puts nodes into a parent. Those that have not changed stay, so that only the others are laid out.
function keep(parent, nodes) {
  const focus = parent.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  const before = [...parent.children];
  nodes.forEach((n, i) => { if (!before[i]) parent.append(n); else if (!before[i].isEqualNode(n)) before[i].replaceWith(n); });
  before.slice(nodes.length).forEach(n => n.remove());
  if (focus === undefined) return;
  const same = [...parent.querySelectorAll('[data-key]')].find(e => e.dataset.key === focus), heading = parent.closest('section').querySelector('h2');
  heading.tabIndex = -1; // what had the focus may be gone
  (same ?? heading).focus({ preventScroll: !same });
}

// ---- times

function age(ms) {
  const s = Math.max(0, ms) / 1000;
  return s < 120 ? Math.floor(s) + 's' : s < 7200 ? Math.floor(s / 60) + 'm' : s < 172_800 ? Math.floor(s / 3600) + 'h' : Math.floor(s / 86_400) + 'd';
}

function left(ms) {
  const s = Math.floor(ms / 1000);
  if (s <= 0) return 'expired';
  if (s < 60) return s + 's';
  if (s < 3600) return Math.floor(s / 60) + 'm ' + s % 60 + 's';
  return s < 172_800 ? Math.floor(s / 3600) + 'h ' + Math.floor(s / 60) % 60 + 'm' : Math.floor(s / 86_400) + 'd';
}

// time returns an element that keeps its text up to date.
function time(at, format) {
  if (!(Date.parse(at) > 0)) return document.createTextNode('–');
  const e = el('time', { datetime: at, title: at });
  e.format = format;
  refresh(e);
  return e;
}

function refresh(e) {
  const at = Date.parse(e.dateTime), text = e.format === 'left' ? left(at - now()) : age(now() - at);
  if (e.textContent !== text) e.textContent = text;
  if (e.format === 'left') e.classList.toggle('bad', at - now() < 600_000);
}

function clock(at) {
  const d = new Date(at), today = d.toDateString() === new Date().toDateString();
  return el('time', { datetime: at, title: at }, d.toLocaleString(undefined, today ? { timeStyle: 'medium' } : { dateStyle: 'medium', timeStyle: 'short' }));
}

// tick shows how old everything is.
function tick() {
  document.querySelectorAll('time').forEach(e => e.format && refresh(e));
  const { answer } = panels.status, state = id('state'), gone = id('unreachable');
  const old = answer?.at ? age(now() - Date.parse(answer.at)) : '';
  const error = broken();
  state.className = 'state ' + (error ? 'bad' : answer ? 'good' : '');
  state.textContent = error ? (old ? 'Data of ' + old + ' ago' : 'No data') : answer ? 'Live, ' + old + ' old' : 'Asking …';
  const [text, since] = gone.children; // text is read aloud when it changes
  gone.hidden = !error;
  if (text.textContent !== error) text.textContent = error;
  since.textContent = error && old ? `What you see is ${old} old.` : '';
}

// ---- numbers

const rate = n => n === 0 ? '0' : n < 0.1 ? '<0.1' : n < 100 ? n.toFixed(1) : n < 1e5 ? Math.round(n).toLocaleString('en') : n.toPrecision(3);
const percent = n => n === undefined ? '–' : n === 1 ? '100%' : n > .9995 ? '>99.9%' : (n * 100).toFixed(1) + '%';
const millis = n => n === undefined ? '–' : n < 10 ? n.toFixed(1) + ' ms' : n < 1000 ? Math.round(n) + ' ms' : (n / 1000).toFixed(1) + ' s';
const level = success => success === undefined || success >= .99 ? '' : success >= .95 ? 'warn' : 'bad';
const plural = (n, one, many) => n + ' ' + (n === 1 ? one : many);

function bytes(n) {
  for (const unit of ['B', 'kB', 'MB', 'GB']) {
    if (n < 1000) return (n < 10 && unit !== 'B' ? n.toFixed(1) : Math.round(n)) + ' ' + unit;
    n /= 1000;
  }
  return Math.round(n) + ' TB';
}

// ---- tables

// fill fills a table. Columns are [head, class, cell], and a cell returns text, a node, or a list of
// them; the first column names the row. Rows that the filter does not select are left out.
function fill(name, columns, rows, words, empty) {
  const table = id(name), shown = rows.filter(r => selected(words(r)));
  const body = el('tbody', {}), head = el('tr', {});
  for (const [title, kind] of columns) head.append(el('th', { scope: 'col', class: kind }, title));
  for (const row of shown.slice(0, maxRows)) {
    const line = el('tr', {});
    columns.forEach(([, kind, cell], i) => line.append(el(i === 0 ? 'th' : 'td', i === 0 ? { scope: 'row', class: kind } : { class: kind }, ...[cell(row)].flat())));
    body.append(line);
  }
  const last = shown.length > maxRows ? `${shown.length - maxRows} more: filter by name` : shown.length > 0 ? '' : rows.length > 0 ? 'None with this name.' : empty;
  if (last) body.append(el('tr', {}, el('td', { colspan: columns.length, class: 'muted' }, last)));
  table.tHead?.remove();
  if (shown.length > 0) table.caption.after(el('thead', {}, head));
  if (table.tBodies[0]) keep(table.tBodies[0], [...body.rows]);
  else table.append(body);
}

function selected(words) {
  const wanted = id('filter').value.trim().toLowerCase();
  return !wanted || words.join(' ').toLowerCase().includes(wanted);
}

// soft returns a name that may be broken behind its dots, dashes and slashes.
function soft(name) {
  const e = el('span', {});
  (name ?? '').split(/(?<=[./-])/).forEach((part, i) => e.append(...i > 0 ? [el('wbr', {})] : [], part));
  return e;
}

const sub = text => text ? el('span', { class: 'sub' }, text) : '';
const badge = (text, kind) => el('span', { class: 'badge ' + kind }, text);
const note = (element, text) => { element.textContent += (element.textContent ? '\n' : '') + text; };

// ---- proxies

const states = ['NOT SENT', 'SYNCED', 'STALE', 'HELD BACK', 'REJECTED', 'GONE'];
const stateLevel = { SYNCED: 'good', STALE: 'warn', 'HELD BACK': 'warn', REJECTED: 'bad', GONE: 'bad' };

// stateOf returns the worst state of a proxy, with its types and the time of the last one.
function stateOf(proxy) {
  const types = proxy.types ?? [], of = name => types.find(t => t.type === name)?.state ?? 'NOT SENT';
  let state = types.reduce((worst, t) => states.indexOf(t.state) > states.indexOf(worst) ? t.state : worst, 'NOT SENT');
  if (state === 'SYNCED' && of('cds') !== 'NOT SENT' && of('lds') === 'NOT SENT') state = 'NOT SENT'; // it starts
  const in_ = types.filter(t => t.state === state && (state !== 'NOT SENT' || t.type === 'lds'));
  const since = in_.map(t => t.since).filter(Boolean).sort((a, b) => Date.parse(a) - Date.parse(b)).at(-1);
  const reasons = state === 'SYNCED' ? [] : [...in_.map(t => t.reason), ...(proxy.held_back ?? []).map(h => `${h.type} ${h.name}, rejected by ${h.rejected_by}: ${h.reason}`)].filter(Boolean);
  return { state, since: since ?? proxy.connected, types: in_.map(t => t.type.toUpperCase()).join(' '), reason: [...new Set(reasons)].slice(0, 3).join('\n') };
}

function showProxies(data, message) {
  const proxies = [], controls = [];
  for (const c of data.control_planes) {
    controls.push(c.error ? `Control plane ${c.address} does not answer` : `Control plane ${c.name || c.address}, version ${c.version || 'unknown'}, last push ${Date.parse(c.pushed) > 0 ? age(now() - Date.parse(c.pushed)) + ' ago' : 'never'}`);
    if (c.error) note(message, `Control plane ${c.address} does not answer, so its proxies are missing: ${c.error}`);
    for (const p of c.proxies ?? []) proxies.push({ ...p, ...stateOf(p) });
  }
  if (data.omitted) note(message, `${plural(data.omitted, 'more proxy is', 'more proxies are')} not listed.`);
  proxies.sort((a, b) => states.indexOf(b.state) - states.indexOf(a.state) || a.name.localeCompare(b.name));
  id('controls').textContent = controls.join(' · ');
  const identities = new Map((panels.outage.answer?.data ?? []).map(o => [o.proxy, o.parts?.find(p => p.what === 'identity')]));
  fill('proxies', [
    ['Name', 'name', p => [soft(p.name), sub(p.role === 'sidecar' ? '' : p.role), p.reason ? el('span', { class: 'sub bad' }, p.reason) : '']],
    ['State', 'fixed', p => badge(p.state, stateLevel[p.state] ?? '')],
    ['Since', 'fixed', p => time(p.since, 'age')],
    ['Types', 'extra', p => p.types || '–'],
    ['Certificate', 'fixed', p => time(identities.get(p.name)?.until, 'left')],
    ['Connected', 'fixed extra', p => time(p.connected, 'age')],
    ['Envoy', 'fixed extra', p => p.envoy_version || '–'],
    ['Identity', 'name extra', p => soft(p.identity || '–')],
  ], proxies, p => [p.name, p.identity ?? '', p.state], 'No proxy is connected.');
  const starting = p => p.state === 'NOT SENT' && !(now() - Date.parse(p.connected) > 60_000), alike = new Map();
  for (const p of proxies.filter(p => p.state !== 'SYNCED' && !starting(p))) {
    const key = p.state + p.reason;
    alike.set(key, [...alike.get(key) ?? [], p]);
  }
  wrong.status = [
    ...data.control_planes.filter(c => c.error).map(c => ['bad', 'control plane', c.address, 'no answer', () => goTo('status')]),
    ...data.control_planes.flatMap(c => (c.credentials ?? []).filter(e => e.soon).map(e => {
      const ended = Date.parse(e.until) <= now();
      return [ended ? 'bad' : 'warn', 'control plane', e.what, `${ended ? 'has ended' : 'ends in ' + left(Date.parse(e.until) - now())}: ${e.then}${e.by ? '; renewed by ' + e.by : ''}`, () => goTo('status')];
    })),
    ...some(data.control_planes.flatMap(c => (c.faults ?? []).map(f => ['bad', 'control plane', c.name || c.address, f, () => goTo('status')])), 'control plane', 'faults', 'status'),
    ...some([...alike.values()].map(([p, ...others]) => [stateLevel[p.state] ?? 'warn', p.state.toLowerCase(),
      p.name + (others.length > 0 ? ` and ${plural(others.length, 'other', 'others')}` : ''), p.reason.split('\n')[0], () => goTo('status')]), 'proxies', 'reasons', 'status'),
  ];
  const bad = proxies.filter(p => p.state !== 'SYNCED'), all = proxies.length + (data.omitted ?? 0);
  tile('proxies', all, all === 0 ? '' : bad.length === 0 ? 'all synced' : [...new Set(bad.map(p => p.state))].map(s => `${bad.filter(p => p.state === s).length} ${s.toLowerCase()}`).join(', '), bad.some(p => stateLevel[p.state] === 'bad') ? 'bad' : bad.length > 0 ? 'warn' : '');
  id('names').replaceChildren(...proxies.slice(0, maxRows).map(p => el('option', { value: p.name })));
}

function tile(name, value, more, kind, valueKind) {
  id('tile-' + name).replaceChildren(value);
  id('tile-' + name).className = valueKind || '';
  const text = id(`tile-${name}-more`);
  text.replaceChildren(more);
  text.title = text.textContent;
  text.className = 'more ' + (kind || '');
}

function showOutages(data, message) {
  const whats = [...new Set(data.flatMap(o => (o.parts ?? []).map(p => p.what)))].slice(0, 8);
  const part = (o, what) => {
    const p = (o.parts ?? []).find(p => p.what === what);
    return !p || p.missing ? 'none' : p.until ? time(p.until, 'left') : 'no limit';
  };
  const credential = p => el('div', { title: [p.then, p.by && p.by + ' renews it'].filter(Boolean).join('; ') }, p.what, ' ', p.unknown ? 'unknown' : time(p.until, 'left'));
  const thens = what => data.flatMap(o => o.parts ?? []).find(p => p.what === what)?.then ?? '';
  const good = data.filter(o => !o.error), silent = data.filter(o => o.error);
  fill('clocks', [
    ['Proxy', 'name', o => soft(o.proxy)],
    ['Control plane', 'fixed', o => o.connected ? badge('connected', 'good') : o.since ? [badge('lost', 'bad'), ' ', time(o.since, 'age')] : badge('never reached', 'bad')],
    ...whats.map(what => [what[0]?.toUpperCase() + what.slice(1), 'fixed', o => part(o, what)]),
    ...(good.some(o => o.credentials?.length) ? [['Credentials', 'name', o => (o.credentials ?? []).slice(0, 3).map(credential)]] : []),
  ], good, o => [o.proxy], 'No agent answers.');
  const head = id('clocks').tHead?.rows[0];
  whats.forEach((what, i) => head?.cells[i + 2].append(sub(thens(what))));
  for (const o of silent.slice(0, 5)) note(message, `The agent of ${o.proxy} at ${o.agent} does not answer: ${o.error}`);
  if (silent.length > 5) note(message, `and ${plural(silent.length - 5, 'other', 'others')}`);
  const certificates = o => [...(o.parts ?? []).filter(p => p.what === 'identity'), ...(o.credentials ?? [])].filter(p => p.until)
    .map(p => [p.what === 'identity' ? o.proxy : `${p.what} of ${o.proxy}`, p.until]);
  const lost = good.filter(o => !o.connected), soon = good.flatMap(certificates).filter(c => Date.parse(c[1]) - now() < 600_000);
  const named = list => list[0] + (list.length > 1 ? ` and ${plural(list.length - 1, 'other', 'others')}` : '');
  wrong.outage = [
    ...soon.length > 0 ? [['bad', 'certificate', named(soon.map(s => s[0])), soon.some(s => Date.parse(s[1]) <= now()) ? 'expired' : 'expires in less than 10 minutes', () => goTo('outages')]] : [],
    ...lost.length > 0 ? [['bad', 'lost', named(lost.map(o => o.proxy)), 'not connected to the control plane', () => goTo('outages')]] : [],
    ...silent.length > 0 ? [['warn', 'agent', named(silent.map(o => o.proxy)), 'no answer', () => goTo('outages')]] : [],
  ];
  const first = good.flatMap(certificates).sort((a, b) => Date.parse(a[1]) - Date.parse(b[1]))[0];
  tile('expiry', first ? time(first[1], 'left') : '–', first ? first[0] : '');
  if (panels.status.answer) show('status');
}

// ---- traffic

let theMap; // once there is one

const seen = new Map(); // edges by their ends, with the time when they had traffic last

function showTraffic(data, message) {
  const at = performance.now();
  if (data.proxies === 0 && data.errors === undefined && seen.size === 0) note(message, 'Measuring …');
  if (data.note) note(message, data.note);
  for (const text of data.errors ?? []) note(message, text);
  for (const e of data.edges) {
    const key = [e.source, e.source_namespace, e.destination, e.destination_namespace].join('\0');
    const before = seen.get(key), timed = e.p50_milliseconds !== undefined; // Envoy publishes latencies every 5 s, which may be rarer
    const last = !timed && before && at - before.timed < 15_000 ? { p50_milliseconds: before.p50_milliseconds, p95_milliseconds: before.p95_milliseconds, p99_milliseconds: before.p99_milliseconds } : {};
    seen.set(key, { ...e, ...last, at, timed: timed ? at : before?.timed });
  }
  for (const [key, e] of seen) if (at - e.at > idleAfter || seen.size > 10_000 && e.at !== at) seen.delete(key);
  const edges = [...seen.values()].map(e => e.at === at ? e : { ...e, idle: true, requests_per_second: 0, tcp_bytes_per_second: 0, success_rate: undefined, p50_milliseconds: undefined, p95_milliseconds: undefined, p99_milliseconds: undefined });
  const order = ['bad', 'warn', ''], failing = e => order.indexOf(level(e.success_rate)), lost = e => e.requests_per_second * (1 - (e.success_rate ?? 1));
  edges.sort((a, b) => failing(a) - failing(b) || b.requests_per_second - a.requests_per_second || b.tcp_bytes_per_second - a.tcp_bytes_per_second || (a.source + '\0' + a.destination < b.source + '\0' + b.destination ? -1 : 1));
  const spaces = new Set(edges.flatMap(e => [e.source_namespace, e.destination_namespace]).filter(Boolean));
  const full = (name, namespace) => namespace && spaces.size > 1 ? name + '.' + namespace : name;
  const numbers = [
    ['Req/s', 'number', e => e.idle ? 'idle' : rate(e.requests_per_second)],
    ['Success', 'number', e => el('span', { class: level(e.success_rate) }, percent(e.success_rate))],
    ['p50', 'number extra', e => millis(e.p50_milliseconds)],
    ['p95', 'number extra', e => millis(e.p95_milliseconds)],
    ['p99', 'number extra', e => millis(e.p99_milliseconds)],
    ...edges.some(e => e.tcp_bytes_per_second > 0) ? [['TCP', 'number extra', e => e.tcp_bytes_per_second > 0 ? bytes(e.tcp_bytes_per_second) + '/s' : '–']] : [],
  ];
  const words = e => [full(e.source ?? '', e.source_namespace), full(e.destination, e.destination_namespace)];
  const wanted = id('filter').value.trim().toLowerCase(), exact = edges.some(e => words(e).some(w => w.toLowerCase() === wanted)); // it was chosen on the map
  const chosen = edges.filter(e => exact ? words(e).some(w => w.toLowerCase() === wanted) : selected(words(e)));
  const large = edges.length > maxEdges, drawn = large && !wanted ? edges.filter(e => failing(e) < 2) : chosen;
  id('map').hidden = !large;
  if (large) chart(edges, data.workloads, full);
  picture(drawn, data.workloads, spaces.size > 1, message); // before the tables, whose layout it would wait for
  fill('edges', [
    ['From', 'name', e => soft(words(e)[0])], ['To', 'name', e => soft(words(e)[1])], ...numbers,
    ['Why', 'number', e => {
      const button = el('button', { class: 'link', type: 'button', 'data-key': words(e).join(' → '), 'aria-label': 'Explain requests from ' + words(e).join(' to ') }, 'Explain');
      button.addEventListener('click', () => prefill(e));
      return button;
    }],
  ], chosen, exact ? () => [wanted] : words, data.proxies === 0 ? 'Nothing yet.' : 'No requests.');
  if (id('workloads').closest('details').open) fill('workloads', [['Workload', 'name', e => soft(words(e)[1])], ...numbers], data.workloads, words, 'No requests.');
  if (data.omitted) note(message, `${plural(data.omitted, 'edge', 'edges')} with less traffic left out.`);
  const worst = edges.filter(e => failing(e) < 2).sort((a, b) => failing(a) - failing(b) || lost(b) - lost(a));
  wrong.top = some(worst.map(e => [level(e.success_rate), 'requests', words(e).join(' → '), `${percent(1 - e.success_rate)} of ${rate(e.requests_per_second)}/s fail`, () => prefill(e)]), 'requests', 'edges fail', 'top');
  const busy = edges.filter(e => !e.idle && e.requests_per_second > 0), sum = busy.reduce((n, e) => n + e.requests_per_second, 0);
  const failed = busy.reduce((n, e) => n + e.requests_per_second * (1 - (e.success_rate ?? 1)), 0), success = sum > 0 ? 1 - failed / sum : undefined;
  tile('rate', data.proxies > 0 || busy.length > 0 ? rate(sum) + '/s' : '–', sum > 0 ? percent(success) + ' success' : data.proxies > 0 ? 'idle' : data.errors ? 'no agent answers' : 'measuring', level(success));
}

// chart shows all services on the map. They have what the worst requests to them have.
function chart(edges, workloads, full) {
  theMap ??= meshMap(document.querySelector('#map canvas'), n => {
    id('filter').value = n.label;
    Object.keys(panels).forEach(show);
  }, n => { id('legend-map').textContent = n ? n.title : about; });
  const nodes = new Map();
  const add = (name, namespace, worst, e) => {
    const key = full(name, namespace), n = nodes.get(key) ?? { id: key, label: key, level: '', calls: 0, called: 0 };
    if (worst === 'bad' || worst === 'warn' && n.level === '') n.level = worst;
    n[e] += 1;
    nodes.set(key, n);
    return key;
  };
  const links = edges.map(e => ({ from: add(e.source, e.source_namespace, '', 'calls'), to: add(e.destination, e.destination_namespace, level(e.success_rate), 'called'), level: e.idle ? 'idle' : level(e.success_rate) }));
  const received = new Map(workloads.map(w => [full(w.destination, w.destination_namespace), w]));
  for (const n of nodes.values()) {
    const w = received.get(n.id);
    n.title = `${n.label}: ${w ? `${rate(w.requests_per_second)}/s · ${percent(w.success_rate)}, ` : ''}called by ${n.called}, calls ${n.calls}`;
  }
  const bad = [...nodes.values()].filter(n => n.level).length;
  const about = `${nodes.size} services, ${edges.length} edges; requests to ${bad} services fail. Drag to move; + and − zoom, and so does the wheel with Ctrl. Choose a service to see its edges.`;
  const canvas = document.querySelector('#map canvas');
  canvas.setAttribute('aria-label', `Map: ${nodes.size} services, ${edges.length} edges; requests to ${bad} services fail. Arrow keys move it, plus and minus zoom, 0 shows all.`);
  if (!canvas.matches(':hover')) id('legend-map').textContent = about;
  theMap.show([...nodes.values()], links);
}

function picture(edges, workloads, spaced, message) {
  const place = id('picture'), focused = document.activeElement === place;
  id('legend').hidden = edges.length === 0;
  if (edges.length === 0) {
    place.replaceChildren();
    return;
  }
  if (edges.length > maxEdges) note(message, `The picture shows ${maxEdges} of ${edges.length} edges: those that fail, then the busiest.`);
  const key = (name, namespace) => name + '\0' + (namespace ?? '');
  const nodes = new Map(), received = new Map(workloads.map(w => [key(w.destination, w.destination_namespace), w]));
  const links = edges.slice(0, maxEdges).map(e => {
    const from = key(e.source, e.source_namespace), to = key(e.destination, e.destination_namespace);
    nodes.set(from, [e.source, e.source_namespace]).set(to, [e.destination, e.destination_namespace]);
    const tcp = e.tcp_bytes_per_second > 0 && e.requests_per_second === 0;
    const first = e.idle ? 'idle' : tcp ? bytes(e.tcp_bytes_per_second) + '/s' : `${rate(e.requests_per_second)}/s · ${percent(e.success_rate)}`;
    const second = e.p50_milliseconds === undefined ? '' : [e.p50_milliseconds, e.p95_milliseconds, e.p99_milliseconds].map(n => millis(n).replace(' ms', '')).join(' / ') + ' ms';
    return {
      from, to, first, second, level: e.idle ? 'idle' : level(e.success_rate), weight: 1.5 + Math.min(3.5, Math.log10(1 + e.requests_per_second)),
      title: `${e.source} → ${e.destination}: ${first}${second && ', ' + second}`, choose: () => prefill(e),
    };
  });
  const list = [...nodes.entries()].sort((a, b) => a[0] < b[0] ? -1 : 1).map(([nodeID, [name, namespace]]) => {
    const w = received.get(nodeID), lines = spaced && namespace ? [namespace] : [];
    lines.push(w && w.requests_per_second > 0 ? `${rate(w.requests_per_second)}/s · ${percent(w.success_rate)}` : links.some(l => l.to === nodeID && l.level !== 'idle') ? 'not measured' : links.some(l => l.to === nodeID) ? 'idle' : 'client');
    return { id: nodeID, label: name, lines, level: name === 'unknown' ? 'outside' : w ? level(w.success_rate) : ['bad', 'warn'].find(of => links.some(l => l.to === nodeID && l.level === of)) ?? '', title: [name, namespace].filter(Boolean).join('.') };
  });
  links.sort((a, b) => a.from + a.to < b.from + b.to ? -1 : 1); // so that the layout stays the same
  const { scrollLeft, scrollTop } = place;
  place.replaceChildren(draw(list, links, place.clientWidth));
  if (scrollLeft || scrollTop) place.scrollTo(scrollLeft, scrollTop);
  if (focused) place.focus();
}

// ---- findings and changes

// place returns the end of the place of an object.
function place(source) {
  const parts = (source ?? '').split('/');
  return el('span', { title: source ?? '' }, soft(parts.length > 3 ? '…/' + parts.slice(-2).join('/') : source));
}

const object = o => [o.kind, o.namespace, o.name].filter(Boolean).join('/');

function showFindings(data, message) {
  const list = data.findings ?? [], kinds = { error: 'bad', warning: 'warn', info: '' };
  const count = s => list.filter(f => f.severity === s).length;
  fill('found', [
    ['Severity', 'fixed', f => badge(f.severity, kinds[f.severity] ?? '')],
    ['What is wrong, and the cure', 'text', f => [f.message, sub(f.cure), el('span', { class: 'sub' }, f.code + ' · ', shows(f.object), f.source ? ' · ' : '', place(f.source))]],
  ], list, f => [f.code, object(f.object), f.message], `None in ${plural(data.objects ?? 0, 'object', 'objects')}.`);
  if (data.unlisted) note(message, `${plural(data.unlisted, 'more finding is', 'more findings are')} not listed.`);
  wrong.findings = some(list.filter(f => f.severity === 'error').map(f => ['bad', f.code, object(f.object), f.message, () => reveal('object', object(f.object), 'object', f.object)]), 'errors', 'errors', 'findings');
  const rest = [[count('warning'), 'warning', 'warnings'], [count('info'), 'info', 'infos']].map(([n, one, many]) => plural(n, one, many)).join(', ');
  tile('findings', plural(count('error'), 'error', 'errors'), rest, count('warning') > 0 ? 'warn' : '', count('error') > 0 ? 'bad' : '');
}

function showChanges(data, message) {
  const list = (data.versions ?? []).toReversed();
  fill('changes', [
    ['Object', 'name', v => [soft(object(v)), el('span', { class: 'sub' }, place(v.source))]],
    ['Change', 'fixed', v => v.change],
    ['Revision', 'fixed', v => [el('code', { class: 'extra' }, (v.revision || '–').slice(0, 8)), ' ', differs(v)]],
    ['Time', 'fixed', v => [clock(v.at), v.unseen ? sub('or before, while it was down') : '']],
  ], list, v => [object(v), v.change], 'None.');
  if (data.omitted) note(message, `${plural(data.omitted, 'older version', 'older versions')}: outrigger history --all`);
  wrong.history = list.filter(v => v.change !== 'found' && now() - Date.parse(v.at) < 3_600_000).slice(0, 2).map(v => ['', v.change, object(v), clock(v.at).textContent, () => difference(v)]);
}

// differs returns a button that shows what a version changed.
function differs(v) {
  const b = el('button', { type: 'button', class: 'link', 'data-key': object(v) + v.at, 'aria-label': `Diff of ${object(v)}, ${v.change} at ${v.at}` }, 'Diff');
  b.addEventListener('click', () => difference(v));
  return b;
}

const difference = v => reveal('difference', object(v), 'difference', v);

// shows returns a button that shows an object.
function shows(o) {
  const b = el('button', { type: 'button', class: 'link', 'data-key': object(o) }, soft(object(o)));
  b.addEventListener('click', () => reveal('object', object(o), 'object', o));
  return b;
}

// asked says when an answer was given, which is not updated.
const asked = () => sub('Asked at ' + new Date().toLocaleTimeString(undefined, { timeStyle: 'medium' }));

// reveal shows what the dashboard has about an object in a place of the page.
async function reveal(name, heading, path, { kind, namespace = '', name: of, at = '' }) {
  const place = id(name), title = place.querySelector('.verdict'), text = place.querySelector('pre');
  let lines;
  try {
    const response = await fetch(`api/${path}?` + new URLSearchParams({ kind, namespace, name: of, at }), { signal: AbortSignal.timeout(120_000) });
    lines = response.ok ? (await response.json()).text : await response.text();
  } catch {
    lines = 'The dashboard does not answer.';
  }
  title.replaceChildren(heading, asked());
  const kinds = path === 'difference' ? { '+': 'good', '-': 'bad' } : {};
  text.replaceChildren(...lines.trimEnd().split('\n').map(line => el('span', { class: kinds[line[0]] ?? '' }, line + '\n')));
  place.hidden = false;
  place.scrollIntoView({ block: 'nearest' });
}

// ---- one request explained

const form = id('request');

function prefill(edge) {
  const name = (n, namespace) => namespace ? n + '.' + namespace : n;
  form.elements.from.value = edge.source === 'unknown' ? 'none' : name(edge.source, edge.source_namespace);
  form.elements.to.value = name(edge.destination, edge.destination_namespace);
  id('explain').scrollIntoView({ block: 'center' });
  explain();
}

async function explain() {
  const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ''));
  history.replaceState(null, '', '#' + query);
  const answer = id('answer'), verdict = answer.querySelector('.verdict'), text = answer.querySelector('pre');
  let lines, kind = 'bad';
  try {
    const response = await fetch('api/explain?' + query, { signal: AbortSignal.timeout(120_000) });
    if (response.ok) {
      const data = await response.json();
      lines = data.text;
      kind = data.decision.allowed ? 'good' : 'bad';
    } else lines = await response.text();
  } catch {
    lines = 'The dashboard does not answer.';
  }
  const [first, ...rest] = lines.trimEnd().split('\n');
  answer.hidden = false;
  verdict.replaceChildren(first, asked());
  verdict.className = 'verdict ' + kind;
  text.textContent = rest.join('\n');
}

form.addEventListener('submit', event => {
  event.preventDefault();
  explain();
});
let typing;
id('filter').addEventListener('input', () => {
  clearTimeout(typing);
  typing = setTimeout(() => Object.keys(panels).forEach(show), 120);
});
document.addEventListener('visibilitychange', () => Object.keys(panels).forEach(poll));
document.querySelectorAll('[data-press]').forEach(b => b.addEventListener('click', () => theMap.press(b.dataset.press)));
document.querySelector('details').addEventListener('toggle', () => show('top'));
let width = innerWidth;
addEventListener('resize', () => {
  if (innerWidth !== width) show('top');
  width = innerWidth;
});

for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
  if (form.elements[name]?.name) form.elements[name].value = value;
}
if (form.elements.from.value && form.elements.to.value) explain();
Object.keys(panels).forEach(poll);
setInterval(tick, 1000);
