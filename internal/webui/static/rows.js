// The rows of the page: what is known, what the filters leave, and how times are written. No DOM but el().

export const tabs = [
  { id: 'pods', name: 'Pods', kinds: ['pod'] },
  { id: 'workloads', name: 'Workloads', kinds: ['deployment', 'statefulset', 'daemonset', 'job'] },
  { id: 'services', name: 'Services', kinds: ['service'] },
  { id: 'nodes', name: 'Nodes', kinds: ['node'] },
  { id: 'inference', name: 'Inference', kinds: ['inferencepool'] },
];

export const stages = {
  schedule: 'no node yet', prepare: 'volumes, sandbox', pull: 'image pull', create: 'container start', wait: 'waits',
  run: 'runs, not ready', ready: 'ready', backoff: 'back-off', stop: 'stopping', done: 'completed', failed: 'failed',
};

const rank = { bad: 0, wait: 1, ok: 2, done: 3 };
export const rows = new Map();
export const byKind = new Map(tabs.flatMap((t) => t.kinds.map((k) => [k, new Map()])));

// Characters that are not shown, or that change the direction of text: names and messages come from anywhere.
const odd = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
export const plain = (text) => String(text ?? '').replace(odd, '\ufffd');

// el makes an element. Text is only ever set as text.
export function el(tag, className, text, ...children) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  if (text !== undefined && text !== null) e.textContent = plain(text);
  e.append(...children);
  return e;
}

// take applies a message of the stream.
export function take(m) {
  if (m.reset) {
    rows.clear();
    for (const all of byKind.values()) all.clear();
  }
  for (const r of m.rows ?? []) {
    const all = byKind.get(r.kind);
    if (!all) continue;
    r.hay = `${r.kind}/${r.name} ${r.ns ?? ''} ${r.node ?? ''} ${r.status ?? ''} ${r.detail ?? ''} ${r.says ?? ''}`.toLowerCase();
    rows.set(r.id, r);
    all.set(r.id, r);
  }
  for (const id of m.gone ?? []) {
    byKind.get(id.slice(0, id.indexOf('/')))?.delete(id);
    rows.delete(id);
  }
}

export function namespaces() {
  const all = new Set();
  for (const r of rows.values()) if (r.ns) all.add(r.ns);
  return [...all].sort();
}

export function counts(tab) {
  const n = { all: 0, bad: 0, wait: 0, ok: 0, done: 0 };
  for (const k of tab.kinds) {
    for (const r of byKind.get(k).values()) {
      n.all++;
      n[r.class]++;
    }
  }
  return n;
}

// chosen returns the rows of a tab that the filters leave, those that need attention first.
export function chosen(tab, filter) {
  const words = filter.text.toLowerCase().split(/\s+/).filter(Boolean);
  const out = [];
  for (const k of tab.kinds) {
    for (const r of byKind.get(k).values()) {
      if (filter.namespace && r.ns && r.ns !== filter.namespace) continue;
      if (filter.problems && (r.class === 'ok' || r.class === 'done')) continue;
      if (words.every((w) => r.hay.includes(w))) out.push(r);
    }
  }
  const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  return out.sort((a, b) => rank[a.class] - rank[b.class] || compare(a.ns ?? '', b.ns ?? '') || compare(a.name, b.name));
}

// span writes a duration in milliseconds.
export function span(ms) {
  if (ms < 1) return `${Math.max(Math.round(ms * 1000), 0)} µs`;
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min`;
  if (s < 172800) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86400)} d`;
}

export const clock = (ms) => new Date(ms).toLocaleTimeString([], { hour12: false });
