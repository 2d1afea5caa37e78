package aggregation

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"

	"carob/internal/kinds/openapi"
)

var _ openapi.Source = (*Server)(nil)

// documents records which OpenAPI documents the server has. A server need not have any.
func (r *remote) documents(ctx context.Context, next *state) {
	next.v3 = nil
	where, err := r.resolve()
	if err != nil {
		return
	}
	where.Path = "/openapi/v3"
	if body, _, err := r.fetch(ctx, next.transport, where, "", maxIndex); err == nil {
		var index struct {
			Paths map[string]struct {
				ServerRelativeURL string `json:"serverRelativeURL"`
			} `json:"paths"`
		}
		if json.Unmarshal(body, &index) == nil {
			place := "apis/" + r.groupVersion().String()
			if p, ok := index.Paths[place]; ok {
				next.v3 = map[string]string{place: p.ServerRelativeURL}
			}
		}
	}
	where.Path = "/openapi/v2"
	if body, tag, err := r.fetch(ctx, next.transport, where, next.v2Tag, maxDocument); err == nil && body != nil {
		next.v2, next.v2Tag = body, tag
	}
}

// V3 implements openapi.Source.
func (s *Server) V3() map[string]openapi.Document {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := map[string]openapi.Document{}
	for _, r := range s.remotes {
		for place, relative := range r.state.Load().v3 {
			u, err := url.Parse(relative)
			if err != nil {
				continue
			}
			hash := u.Query().Get("hash")
			out[place] = openapi.Document{Hash: hash, JSON: func() ([]byte, error) {
				where, err := r.resolve()
				if err != nil {
					return nil, err
				}
				where.Path, where.RawQuery = u.Path, u.RawQuery
				b, _, err := r.fetch(context.Background(), r.state.Load().transport, where, "", maxDocument)
				if err != nil {
					return nil, fmt.Errorf("query the server behind %s: %w", r.name, err)
				}
				return b, nil
			}}
		}
	}
	return out
}

// V2 implements openapi.Source.
func (s *Server) V2() []openapi.Document {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var out []openapi.Document
	type document struct{ namespace, service, tag string } // two servers may use the same tag
	seen := map[document]bool{}
	for _, r := range s.remotes {
		st := r.state.Load()
		if d := (document{r.spec.Service.Namespace, r.spec.Service.Name, st.v2Tag}); st.err == nil && st.v2 != nil &&
			!seen[d] {
			seen[d] = st.v2Tag != ""
			out = append(out, openapi.Document{Hash: strings.Trim(st.v2Tag, `"`) + r.name,
				JSON: func() ([]byte, error) { return st.v2, nil }})
		}
	}
	return out
}
