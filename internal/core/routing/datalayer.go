package routing

import (
	"fmt"
	"strings"
)

type dataLayerSpec struct {
	Sources []struct {
		PluginRef  string      `json:"pluginRef"`
		Extractors []pluginRef `json:"extractors"`
	} `json:"sources"`
}

type requestHandler struct {
	Parsers []pluginRef `json:"parsers"`
}

// Source is where the metrics of each server are.
type Source struct {
	TLS    bool
	Verify bool // the certificate, which is that of the pod's address
	Path   string
}

func defaultSource() Source { return Source{Path: "/metrics"} }

// Source is where the metrics of each server are.
func (c *Config) Source() Source { return c.source }

// dataSource reads the parameters of metrics-data-source.
func (p *plugin) dataSource(into func(any) error) error {
	c := struct {
		Scheme             string   `json:"scheme"`
		Path               string   `json:"path"`
		InsecureSkipVerify bool     `json:"insecureSkipVerify"`
		Families           []string `json:"families"` // others are never parsed
	}{Scheme: "http", Path: defaultSource().Path, InsecureSkipVerify: true} // upstream's defaults
	if err := into(&c); err != nil {
		return err
	}
	plain := !strings.ContainsFunc(c.Path, func(r rune) bool {
		return r <= ' ' || r > '~' || strings.ContainsRune(`?#%\"`, r)
	})
	switch {
	case c.Scheme != "http" && c.Scheme != "https":
		return fmt.Errorf("scheme is %q, which is neither http nor https", c.Scheme)
	case !strings.HasPrefix(c.Path, "/") || len(c.Path) > 1024 || !plain:
		return fmt.Errorf("path is %q, which is not the path of a URL without escapes", c.Path)
	}
	p.source = &Source{TLS: c.Scheme == "https", Verify: !c.InsecureSkipVerify, Path: c.Path}
	return nil
}

// dataLayer accepts the sources of upstream's default: carob always scrapes all metrics that its plugins need, and
// follows KV events if one needs them.
func (b *builder) dataLayer(doc *document) error {
	if doc.DataLayer == nil {
		doc.DataLayer = doc.Data
	}
	if doc.DataLayer == nil {
		return nil
	}
	for i, s := range doc.DataLayer.Sources {
		at := fmt.Sprintf("dataLayer.sources[%d]", i)
		p, err := b.find(s.PluginRef, at)
		if err != nil {
			return err
		}
		if p.source == nil && p.kind != "endpoint-notification-source" {
			return fmt.Errorf("%s: %s is not a source of data", at, p.kind)
		}
		for _, ref := range s.Extractors {
			e, err := b.find(ref.PluginRef, at)
			switch {
			case err != nil:
				return err
			case p.source != nil && e.extraction == nil:
				return fmt.Errorf("%s: %s extracts no metrics", at, e.kind)
			case p.source == nil && e.precise == nil:
				return fmt.Errorf("%s: %s uses no notifications", at, e.kind)
			}
		}
	}
	return nil
}

// parsers accepts the parsers that the gateway has: it determines the API of a request from its path and body.
func (b *builder) parsers(doc *document) error {
	var all []pluginRef
	if doc.Parser != nil {
		all = append(all, *doc.Parser)
	}
	if doc.RequestHandler != nil {
		all = append(all, doc.RequestHandler.Parsers...)
	}
	for _, ref := range all {
		p, err := b.find(ref.PluginRef, "parser")
		if err != nil {
			return err
		}
		if !strings.HasSuffix(p.kind, "-parser") {
			return fmt.Errorf("parser: %s parses no requests", p.kind)
		}
	}
	return nil
}
