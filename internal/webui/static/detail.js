// The details of one object: what carob explain says about it, and the chart of a pod.
import { el, plain, span } from './rows.js';

const commands = { pod: ['explain', 'timeline'], inferencepool: ['explain'] };

// get reads a detail.
async function get(what, secret, row, signal) {
  const q = new URLSearchParams({ kind: row.kind, namespace: row.ns ?? '', name: row.name });
  const res = await fetch(`api/${what}?${q}`, { headers: { Authorization: `Bearer ${secret}` }, signal });
  const text = await res.text();
  if (!res.ok) throw new Error(text.trim());
  return JSON.parse(text);
}

// detail shows a row in the panel. It returns when both parts are there.
export async function detail(panel, row, secret, signal, close) {
  const fresh = panel.dataset.id !== row.id;
  const [lines, chart] = await Promise.all([
    get('explain', secret, row, signal).catch((e) => e),
    row.kind === 'pod' ? get('chart', secret, row, signal).catch((e) => e) : null,
  ]);
  if (signal.aborted) return;
  const top = fresh ? 0 : panel.scrollTop;
  const focused = panel.contains(document.activeElement);
  const button = el('button', '', 'Close');
  button.addEventListener('click', close);
  const title = el('div', '', null, el('h2', '', `${row.kind} ${row.name}`));
  title.append(el('p', 'meta', [row.ns && `namespace ${row.ns}`, row.node && `node ${row.node}`, row.status, row.detail]
    .filter(Boolean).join(' · ')));
  const parts = [el('div', 'head', null, title, button), explained(lines)];
  if (chart instanceof Error) parts.push(el('h3', '', 'Timeline'), line(true, chart.message));
  else if (chart) parts.push(...drawn(chart));
  parts.push(el('h3', '', 'In a terminal'));
  for (const c of commands[row.kind] ?? ['explain']) {
    parts.push(el('p', 'mono', `carob ${c} ${row.kind}/${row.name}${row.ns ? ` -n ${row.ns}` : ''}`));
  }
  panel.dataset.id = row.id;
  panel.replaceChildren(...parts);
  panel.scrollTop = top;
  if (focused) button.focus();
}

function line(problem, text) {
  return el('div', problem ? 'line bad' : 'line', null, el('span', 'mark', problem ? '!' : ''), el('span', 'text', text));
}

function explained(lines) {
  if (lines instanceof Error) return line(true, lines.message);
  return el('div', '', null, ...lines.map((l) => line(l.problem, l.text)));
}

// scale maps times to 0–1: the distance of adjacent times grows with the logarithm of the time between them.
export function scale(times) {
  const all = [...new Set(times)].sort((a, b) => a - b);
  const at = new Map();
  let x = 0;
  all.forEach((t, i) => {
    if (i > 0) x += Math.log1p((t - all[i - 1]) / 1000);
    at.set(t, x);
  });
  return { all, of: (t) => (x > 0 ? at.get(t) / x : 0) };
}

function drawn(chart) {
  if (chart.rows.length === 0) return [el('h3', '', 'Timeline'), el('p', 'meta', 'nothing is recorded yet')];
  const times = [chart.first, chart.last];
  for (const r of chart.rows) {
    for (const s of r.spans ?? []) times.push(s.from, s.to);
    for (const m of r.marks ?? []) times.push(m.at);
  }
  const axis = scale(times);
  const grid = el('div', 'chart');
  const ruler = el('div', 'ruler');
  let free = 0;
  for (const t of axis.all) {
    const x = axis.of(t);
    if (x < free || x > 0.92) continue;
    const s = el('span', '', `+${span((t - chart.first) / 1000)}`);
    s.style.left = `${x * 100}%`;
    ruler.append(s);
    free = x + 0.13;
  }
  grid.append(el('span'), ruler, el('span', 'note'));
  let group = '';
  for (const r of chart.rows) {
    const track = el('div', 'track');
    for (const s of r.spans ?? []) {
      const bar = el('i', `look-${s.failed ? 'failed' : s.look}`);
      bar.style.left = `${axis.of(s.from) * 100}%`;
      bar.style.width = `${(axis.of(s.to) - axis.of(s.from)) * 100}%`;
      bar.title = `${span((s.to - s.from) / 1000)}${s.failed ? ', failed' : ''}${s.open ? ', not ended' : ''}`;
      track.append(bar);
    }
    for (const m of r.marks ?? []) {
      const mark = el('b', m.good ? 'good' : 'fault');
      mark.style.left = `${axis.of(m.at) * 99.6}%`;
      track.append(mark);
    }
    grid.append(el('span', 'cut', `${r.group === group ? '' : r.group} ${r.name}`.trim()), track, el('span', 'note meta cut', r.note));
    group = r.group;
  }
  const items = el('div', 'items');
  for (const i of [...chart.items].reverse()) {
    items.append(el('span', 'when', `+${span((i.at - chart.first) / 1000)}`),
      el('span', i.tone ?? '', `${i.who ?? ''} ${i.what}`.trim()), el('span', `text ${i.tone ?? ''}`, i.text));
  }
  const out = [el('h3', '', 'Timeline'), grid, el('h3', '', 'What happened, newest first'), items];
  if (chart.left) out.push(el('p', 'meta', `${chart.left} earlier entries are left out`));
  if (chart.older) out.push(el('p', 'meta', `${chart.older} earlier pods had this name`));
  out[1].title = plain(`from ${new Date(chart.first / 1000).toISOString()}`);
  return out;
}
