// The page of `carob dashboard`: reads the stream of rows and shows those that can be seen.
import {
  byKind, chosen, clock, counts, el, namespaces, plain, rows, span, stages, tabs, take,
} from './rows.js';
import { detail } from './detail.js';
import { draw as drawPools, note as notePools } from './pools.js';

const $ = (id) => document.getElementById(id);
const filter = { namespace: '', text: '', problems: false };
let tab = tabs[0];
let list = []; // rows that the filters leave
let selected = ''; // ID of a row
let open = ''; // ID of the row whose details are open
let status = null;
let last = 0; // when a line of the stream came
let lostAt = 0;
let dirty = true;
let reading; // the AbortController of the details that are being read

// The secret is behind # of the address: it is not sent to servers, and does not stay in the address.
function readAddress() {
  const [secret, ...rest] = location.hash.slice(1).split('/');
  if (secret) sessionStorage.setItem('secret', secret);
  if (rest.length === 1) tab = tabs.find((t) => t.id === rest[0]) ?? tab;
  if (rest.length === 3) {
    open = selected = rest.map(decodeURIComponent).join('/');
    tab = tabs.find((t) => t.kinds.includes(rest[0])) ?? tab;
  }
  remember();
}

function remember() {
  const rest = open ? open.split('/').map(encodeURIComponent).join('/') : tab.id;
  history.replaceState(null, '', `#/${rest}`);
}

const secret = () => sessionStorage.getItem('secret') ?? '';

function link(text, state) {
  $('link').textContent = plain(text);
  $('link').className = state;
}

function banner(text) {
  $('banner').hidden = !text;
  $('banner').textContent = plain(text);
}

// follow reads the stream until it ends, again and again.
async function follow() {
  for (let tries = 0; ; tries++) {
    const control = new AbortController();
    const watchdog = setInterval(() => { if (Date.now() - last > 45000) control.abort(); }, 5000);
    try {
      last = Date.now();
      const res = await fetch('api/stream', { headers: { Authorization: `Bearer ${secret()}` }, signal: control.signal });
      if (res.status === 401) {
        link('no access', 'lost');
        banner(await res.text());
        return;
      }
      if (!res.ok) throw new Error((await res.text()).trim());
      tries = 0;
      await read(res.body.getReader());
      throw new Error('the connection ended');
    } catch (e) {
      lostAt ||= last;
      link('not connected', 'lost');
      banner(`carob dashboard does not answer (${e.message}). If it has ended, start it again, and open the address that ` +
        `it then prints. What you see is from ${clock(lostAt)}.`);
    } finally {
      clearInterval(watchdog);
    }
    await new Promise((done) => setTimeout(done, Math.min(500 * 2 ** tries, 8000)));
  }
}

async function read(reader) {
  const decoder = new TextDecoder();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    last = Date.now();
    const lines = (rest + decoder.decode(value, { stream: true })).split('\n');
    rest = lines.pop();
    for (const text of lines) if (text) message(JSON.parse(text));
  }
}

function message(m) {
  take(m);
  if (m.status) connection(m.status);
  if (m.reset && !m.status?.lost && lostAt) lostAt = 0;
  for (const r of m.rows ?? []) {
    if (r.kind === 'inferencepool') notePools(r);
    if (r.id === open) refresh();
  }
  if (m.gone?.includes(open)) refresh();
  dirty = true;
}

function connection(now) {
  if (now.lost) {
    lostAt ||= now.since;
    link('API server does not answer', 'lost');
    banner(`The API server ${now.cluster} has not answered since ${clock(now.since)}: ${now.lost}. carob is stopped or ` +
      'restarts (`carob status`). What you see is how it was then; it is tried again without end.');
  } else {
    if (status?.lost) link(`connected again at ${clock(Date.now())}, after ${span(Date.now() - status.since)}`, 'good');
    else if (!$('link').textContent.startsWith('connected again')) link('live', 'good');
    banner('');
  }
  status = now;
  $('notes').replaceChildren(...(now.notes ?? []).map((n) => el('li', '', n)));
  $('notes').hidden = !now.notes?.length;
}

// summary is the cluster in one line.
function summary() {
  const nodes = [...byKind.get('node').values()];
  const ready = nodes.filter((n) => n.class !== 'bad').length;
  const pods = counts(tabs[0]);
  const parts = [`carob ${status?.version ?? ''}`, status?.namespace ? `namespace ${status.namespace}` : ''];
  if (nodes.length === 1) parts.push(`node ${nodes[0].name} ${ready ? 'ready' : 'not ready'}`);
  else if (nodes.length > 1) parts.push(`${ready} of ${nodes.length} nodes ready`);
  parts.push(`${pods.all} pods: ${pods.ok} ready, ${pods.done} completed, ${pods.wait} waiting, ${pods.bad} need attention`);
  $('summary').textContent = plain(parts.filter(Boolean).join(' · '));
  document.title = `${pods.bad ? `(${pods.bad}) ` : ''}carob`;
}

function drawTabs() {
  const old = new Map([...$('tabs').children].map((b) => [b.id, b]));
  for (const t of tabs) {
    let b = old.get(`tab-${t.id}`);
    if (!b) {
      b = el('button');
      b.id = `tab-${t.id}`;
      b.setAttribute('role', 'tab');
      b.addEventListener('click', () => choose(t));
      $('tabs').append(b);
    }
    const n = counts(t);
    b.replaceChildren(`${t.name} ${n.all}`);
    if (n.bad) b.append(' ', el('span', 'bad', `!${n.bad}`));
    else if (n.wait) b.append(' ', el('span', 'wait', `…${n.wait}`));
    b.setAttribute('aria-label', `${t.name}: ${n.all}, ${n.bad} need attention, ${n.wait} wait`);
    b.setAttribute('aria-selected', t === tab);
    b.tabIndex = t === tab ? 0 : -1;
  }
}

function choose(t) {
  tab = t;
  $('list').scrollTop = 0;
  selected = '';
  shut();
  dirty = true;
}

function drawNamespaces() {
  const all = namespaces();
  const select = $('namespace');
  if (all.join('\n') === [...select.options].slice(1).map((o) => o.value).join('\n')) return;
  select.replaceChildren(new Option('all', ''), ...all.map((n) => new Option(plain(n), n)));
  if (filter.namespace && !all.includes(filter.namespace)) select.append(new Option(plain(filter.namespace), filter.namespace));
  select.value = filter.namespace;
}

// heights of rows: with a sentence, and without.
function heights() {
  if (matchMedia('(max-width: 720px)').matches) return tab.id === 'pods' ? [156, 78] : [156, 78];
  return [80, 37];
}

const says = (r) => (r.says ? 0 : 1);

function draw() {
  drawTabs();
  summary();
  drawNamespaces();
  list = chosen(tab, filter);
  const pools = tab.id === 'inference';
  $('list').hidden = pools;
  $('pools').hidden = !pools;
  $('legend').hidden = $('axis').hidden = tab.id !== 'pods';
  empty();
  if (pools) drawPools($('pools'), list, show);
  else drawRows();
}

function drawRows() {
  const [tall, low] = heights();
  const many = list.filter((r) => r.says).length;
  // Rows with a sentence come first, except for some that have none among them: positions are sums.
  const tops = new Array(list.length + 1);
  tops[0] = 0;
  for (let i = 0; i < list.length; i++) tops[i + 1] = tops[i] + (says(list[i]) === 0 ? tall : low);
  const box = $('list');
  $('space').style.height = `${tops[list.length]}px`;
  let first = lower(tops, box.scrollTop);
  const end = Math.min(lower(tops, box.scrollTop + box.clientHeight) + 3, list.length);
  first = Math.max(first - 3, 0);
  $('rows').style.top = `${tops[first]}px`;
  const out = [];
  for (let i = first; i < end; i++) out.push(row(list[i], i, says(list[i]) === 0 ? tall : low));
  $('rows').replaceChildren(...out);
  const i = list.findIndex((r) => r.id === selected);
  if (i >= first && i < end) box.setAttribute('aria-activedescendant', `row-${i}`);
  else box.removeAttribute('aria-activedescendant');
  box.dataset.many = many;
}

// lower is the last index whose top is not below y.
function lower(tops, y) {
  let a = 0;
  let b = tops.length - 1;
  while (a < b) {
    const m = (a + b + 1) >> 1;
    if (tops[m] <= y) a = m;
    else b = m - 1;
  }
  return Math.min(a, Math.max(tops.length - 2, 0));
}

const words = { bad: 'needs attention', wait: 'waits', ok: 'ok', done: 'completed' };

function row(r, i, height) {
  const e = el('div', `row ${r.class}${r.kind === 'pod' ? '' : ' plain'}`);
  e.id = `row-${i}`;
  e.style.height = `${height}px`;
  e.setAttribute('role', 'option');
  e.setAttribute('aria-selected', r.id === selected);
  e.setAttribute('aria-setsize', list.length);
  e.setAttribute('aria-posinset', i + 1);
  const name = el('span', 'name cut');
  name.append(el('span', 'ns', r.ns ? `${r.ns}/` : ''), plain(r.name));
  name.title = plain(`${r.ns ? `${r.ns}/` : ''}${r.name}`);
  const age = `${span(Date.now() - r.created)} old`;
  if (r.kind === 'pod') {
    e.append(el('span', 'state cut', r.status), name, el('span', 'ready-count meta', r.ready),
      el('span', 'age meta', r.restarts ? `${r.restarts} restart${r.restarts > 1 ? 's' : ''}` : age),
      el('span', 'node meta cut', r.node ?? 'no node'), life(r));
  } else {
    const count = r.kind === 'node' ? `${r.ready}/${r.wanted} pods` : `${r.ready}/${r.wanted}`;
    e.append(el('span', 'state cut', words[r.class]), name, el('span', 'ready-count meta', count), el('span', 'age meta', age),
      el('span', 'node meta cut', [tab.id === 'workloads' && r.kind, r.detail].filter(Boolean).join(', ')));
  }
  if (r.says) e.append(el('span', 'says', r.says));
  e.addEventListener('click', () => show(r.id));
  return e;
}

// life draws the stages of a pod, each as wide as it took long: compressed, or in a window of time that all pods share.
function life(r) {
  const lane = el('div', 'lane');
  const now = Date.now() * 1000;
  const window = Number($('window').value) * 1e6;
  const ended = (what) => what === 'done' || what === 'failed';
  const parts = r.stages.map(([at, what], i) => {
    const to = i + 1 < r.stages.length ? r.stages[i + 1][0] : Math.max(now, at);
    return { at, to, what, ms: Math.max(to - at, 0) / 1000 };
  });
  let total = 0;
  for (const p of parts) total += (p.weight = Math.log1p(p.ms) + 0.4);
  let x = 0;
  for (const p of parts) {
    let left = x / total;
    let width = p.weight / total;
    x += p.weight;
    if (window) {
      const from = Math.max(p.at, now - window);
      if (p.to <= now - window) continue;
      left = 1 - (now - from) / window;
      width = ended(p.what) && p === parts[parts.length - 1] ? 0.01 : Math.max((p.to - from) / window, 0.004);
    }
    const bar = el('i', `stage-${p.what}`);
    bar.style.left = `${left * 100}%`;
    bar.style.width = `${width * 100}%`;
    lane.append(bar);
  }
  const exact = r.exact ? '' : 'about ';
  lane.title = parts.map((p) => `${stages[p.what]}${ended(p.what) ? '' : ` ${exact}${span(p.ms)}`}`).join(' → ');
  const end = parts[parts.length - 1];
  const out = el('div', 'life');
  out.append(lane, el('span', '', `${short[end.what]} ${span(end.ms)}`));
  return out;
}

const short = { schedule: 'no node', prepare: 'prepares', pull: 'pulls', create: 'starts', wait: 'waits', run: 'not ready', ready: 'ready',
  backoff: 'back-off', stop: 'stops', done: 'ended', failed: 'failed' };

// empty says what to do when there is nothing to show.
function empty() {
  const box = $('empty');
  box.hidden = list.length > 0 || secret() === '';
  if (box.hidden) return;
  const n = counts(tab);
  const loading = (status?.loading ?? []).some((k) => tab.kinds.some((t) => k.startsWith(t)));
  const say = (text, ...code) => box.replaceChildren(el('p', '', text), ...code.map((c) => el('code', '', c)));
  if (!status || loading) say('Reading…');
  else if (n.all > 0) {
    say(`None of ${n.all} ${tab.name.toLowerCase()} matches the filters.`);
    const b = el('button', '', 'Remove the filters');
    b.addEventListener('click', clear);
    box.append(b);
  } else if (status.notes?.length && tab.id !== 'inference') say('Nothing to show; see the notes above.');
  else if (tab.id === 'pods') {
    say('There is no pod. Start one:', 'carob demo', 'carob kubectl run web --image=nginx');
  } else if (tab.id === 'inference') {
    say('There is no InferencePool. Model servers appear here with their queues and caches after:',
      'carob up --gateway-http :80', 'carob addon enable inference', 'kubectl apply -f inferencepool.yaml');
  } else if (tab.id === 'workloads') {
    say('There is no workload. Create one:', 'carob kubectl create deployment web --image=nginx');
  } else if (tab.id === 'services') say('There is no Service:', 'carob kubectl expose pod web --port=80');
  else say('There is no node, or you may not read nodes.');
}

function clear() {
  filter.namespace = filter.text = $('text').value = $('namespace').value = '';
  filter.problems = $('problems').checked = false;
  dirty = true;
}

// show opens the details of a row.
function show(id) {
  selected = open = id;
  remember();
  refresh();
  dirty = true;
}

let again;
function refresh() { // at most twice in a second
  again ??= setTimeout(async () => {
    again = undefined;
    const r = rows.get(open);
    if (!r) {
      if (open && !$('detail').hidden) $('detail').prepend(el('p', 'line bad', 'It does not exist any more.'));
      return;
    }
    reading?.abort();
    const mine = reading = new AbortController();
    const first = $('detail').hidden;
    await detail($('detail'), r, secret(), mine.signal, shut).catch(() => {});
    if (mine.signal.aborted || open !== r.id) return;
    $('detail').hidden = false;
    if (first) $('detail').focus();
    dirty = true;
  }, $('detail').hidden || $('detail').dataset.id !== open ? 0 : 500);
}

function shut() {
  reading?.abort();
  open = '';
  $('detail').hidden = true;
  delete $('detail').dataset.id;
  remember();
  $('list').focus();
  dirty = true;
}

function move(by) {
  if (list.length === 0) return;
  let i = list.findIndex((r) => r.id === selected);
  i = Math.min(Math.max(i < 0 ? 0 : i + by, 0), list.length - 1);
  selected = list[i].id;
  const [tall, low] = heights();
  const box = $('list');
  let top = 0;
  for (let k = 0; k < i; k++) top += says(list[k]) === 0 ? tall : low;
  const height = says(list[i]) === 0 ? tall : low;
  if (top < box.scrollTop) box.scrollTop = top;
  else if (top + height > box.scrollTop + box.clientHeight) box.scrollTop = top + height - box.clientHeight;
  draw();
}

$('list').addEventListener('keydown', (e) => {
  const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -1e9, End: 1e9, j: 1, k: -1 }[e.key];
  if (by) move(by);
  else if (e.key === 'Enter' && selected) show(selected);
  else return;
  e.preventDefault();
});
$('tabs').addEventListener('keydown', (e) => {
  const by = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
  if (!by) return;
  choose(tabs[(tabs.indexOf(tab) + by + tabs.length) % tabs.length]);
  draw();
  $(`tab-${tab.id}`).focus();
});
document.addEventListener('keydown', (e) => {
  if (e.key === 'Escape' && open) shut();
  if (e.key === '/' && !/INPUT|SELECT/.test(document.activeElement.tagName)) {
    $('text').focus();
    e.preventDefault();
  }
});
$('filters').addEventListener('submit', (e) => e.preventDefault());
$('filters').addEventListener('input', () => {
  filter.namespace = $('namespace').value;
  filter.text = $('text').value;
  filter.problems = $('problems').checked;
  dirty = true;
});
$('list').addEventListener('scroll', () => { dirty = true; }, { passive: true });
addEventListener('resize', () => { dirty = true; });
for (const [what, text] of Object.entries(stages)) {
  const s = el('span');
  s.append(el('i', `stage-${what}`), text);
  $('legend').append(s);
}

function frame() {
  if (dirty) {
    dirty = false;
    draw();
  }
  requestAnimationFrame(frame);
}

// Another address in the same tab, such as the one with a new secret, loads nothing by itself.
addEventListener('hashchange', () => location.reload());
readAddress();
if (secret()) follow();
else {
  link('no access', 'lost');
  banner('Open the whole address that carob dashboard has printed, with the part behind #.');
}
setInterval(() => { dirty = true; }, 1000); // ages
requestAnimationFrame(frame);
