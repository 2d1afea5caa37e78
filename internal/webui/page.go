package webui

import (
	"maps"
	"slices"
	"time"
)

// mostRows limits the rows of one message; the rest follows in the next.
const mostRows = 2000

// join adds a page. It reports false if there are too many.
func (s *state) join(p *page) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pages) >= mostPages {
		return false
	}
	s.pages[p] = true
	s.render(time.Now())
	for id := range s.shown {
		p.rows[id] = true
	}
	return true
}

func (s *state) leave(p *page) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pages, p)
}

// next takes what a page has to be sent.
func (s *state) next(p *page, cfg *Config) *message {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := &message{}
	for id := range p.rows {
		if text := s.shown[id]; text != nil {
			m.Rows = append(m.Rows, text)
		} else {
			m.Gone = append(m.Gone, id)
		}
		delete(p.rows, id)
		if len(m.Rows)+len(m.Gone) == mostRows {
			poke(p.wake)
			break
		}
	}
	if p.status {
		p.status = false
		m.Status = s.status(cfg)
	}
	return m
}

// status describes the connection. The caller holds mu.
func (s *state) status(cfg *Config) *status {
	out := &status{Cluster: cfg.Cluster, Version: cfg.Version, Namespace: cfg.Namespace}
	for _, about := range slices.Sorted(maps.Keys(s.notes)) {
		if !slices.Contains(out.Notes, s.notes[about]) {
			out.Notes = append(out.Notes, s.notes[about])
		}
	}
	for _, watch := range slices.Sorted(maps.Keys(s.broken)) {
		out.Lost, out.Since = s.broken[watch], s.since.UnixMilli()
		break
	}
	for _, k := range sources() {
		if _, read := s.left[k.kind]; !read && s.notes[k.kind] == "" && k.kind != "event" && k.kind != "endpointslice" {
			out.Loading = append(out.Loading, k.plural)
		}
	}
	return out
}
