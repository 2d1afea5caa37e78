// The InferencePools and their model servers: queues, running requests, and caches, now and in the last two minutes.
import { el, span } from './rows.js';

const kept = 120000; // milliseconds of history
const mostPools = 50;
const mostServers = 200;
const history = new Map(); // of samples, by pool and server

// note keeps a sample of each server.
export function note(row) {
  const now = Date.now();
  for (const s of (row.state?.servers ?? []).slice(0, mostServers)) {
    const id = `${row.id}\n${s.name}\n${s.address}`;
    const all = history.get(id) ?? [];
    all.push({ at: now, queue: s.waiting, cache: s.cache });
    while (all.length > 1 && all[1].at < now - kept) all.shift();
    history.set(id, all);
  }
  if (history.size > 2 * mostServers) {
    for (const [id, all] of history) if (all[all.length - 1].at < now - kept) history.delete(id);
  }
}

function meter(share, text) {
  const m = el('span', share >= 0.9 ? 'meter high' : 'meter');
  const bar = el('i');
  bar.style.width = `${Math.min(Math.max(share, 0), 1) * 100}%`;
  m.append(bar);
  return el('span', '', null, m, text);
}

function spark(all, now) {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  svg.setAttribute('class', 'spark');
  svg.setAttribute('viewBox', '0 0 160 28');
  svg.setAttribute('role', 'img');
  const most = Math.max(...all.map((s) => s.queue), 1);
  svg.setAttribute('aria-label', `the last two minutes: at most ${most} in the queue`);
  for (const [name, of] of [['cache', (s) => s.cache], ['queue', (s) => s.queue / most]]) {
    const points = [];
    all.forEach((s, i) => {
      const x = (t) => (160 * (1 - (now - Math.max(t, now - kept)) / kept)).toFixed(1);
      const y = (27 - 26 * Math.min(of(s), 1)).toFixed(1);
      points.push(`${x(s.at)},${y}`, `${x(i + 1 < all.length ? all[i + 1].at : now)},${y}`);
    });
    const line = document.createElementNS('http://www.w3.org/2000/svg', 'polyline');
    line.setAttribute('class', name);
    line.setAttribute('points', points.join(' '));
    svg.append(line);
  }
  return svg;
}

function fact(name, value) {
  return el('span', '', `${name} `, el('b', '', value));
}

// draw shows the pools.
export function draw(box, pools, show) {
  const now = Date.now();
  const top = box.scrollTop;
  box.replaceChildren(...pools.slice(0, mostPools).map((p) => pool(p, now, show)));
  if (pools.length > mostPools) box.append(el('p', 'meta', `and ${pools.length - mostPools} more: use the filters`));
  box.scrollTop = top;
}

function pool(p, now, show) {
  const card = el('section', `pool ${p.class}`);
  card.append(el('h2', '', `${p.ns}/${p.name}`));
  const s = p.state;
  if (s && !s.picker) {
    card.append(el('div', 'facts', null, fact('ready servers', s.ready), fact('being answered', s.requests - s.waiting),
      fact("in servers' queues", s.waiting), fact('held by carob', s.held), fact('refused', s.refused ?? 0),
      el('span', '', 'saturation ', meter(s.saturation, `${Math.round(s.saturation * 100)} %`))));
  }
  // The table shows what the lines about servers without a problem say.
  for (const l of p.lines ?? []) {
    if (!l.problem && l.text.startsWith('server ')) continue;
    card.append(el('div', l.problem ? 'line bad' : 'line', null, el('span', 'mark', l.problem ? '!' : ''),
      el('span', 'text', l.text)));
  }
  if (s?.servers?.length) card.append(servers(p, s.servers, now));
  const b = el('button', '', 'Details');
  b.addEventListener('click', () => show(p.id));
  card.append(b);
  return card;
}

function servers(p, all, now) {
  const table = el('table');
  const head = el('tr');
  for (const [name, cls] of [['Server'], ['Queue', 'num'], ['Running', 'num'], ['In flight', 'num'], ['KV cache'],
    ['Last 2 minutes'], ['Adapters'], ['Metrics']]) {
    const h = el('th', cls ?? '', name);
    h.scope = 'col';
    if (name.startsWith('Last')) h.append(el('span', 'key', null, ' ', el('span', 'queue', 'queue'), ' ', el('span', 'cache', 'cache')));
    head.append(h);
  }
  table.append(head);
  const sorted = [...all].sort((a, b) => (a.name < b.name ? -1 : 1));
  for (const s of sorted.slice(0, mostServers)) {
    const row = el('tr');
    const name = el('td', '', s.name);
    name.title = s.address;
    const seen = s.seen ? `${span(Math.max(now - Date.parse(s.seen), 0))} old` : 'none yet';
    row.append(name, el('td', 'num', s.waiting), el('td', 'num', s.running), el('td', 'num', s.inFlight),
      el('td', '', null, meter(s.cache, `${Math.round(s.cache * 100)} %`)),
      el('td', '', null, spark(history.get(`${p.id}\n${s.name}\n${s.address}`) ?? [], now)),
      el('td', '', (s.adapters ?? []).slice(0, 8).join(', ') + (s.adapters?.length > 8 ? ' …' : '')),
      el('td', s.problem ? 'bad' : 'meta', s.problem ? `${seen}: ${s.problem}` : seen));
    table.append(row);
  }
  const out = el('div', 'scroll', null, table);
  if (all.length > mostServers) out.append(el('p', 'meta', `and ${all.length - mostServers} more servers`));
  return out;
}
