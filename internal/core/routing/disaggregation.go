package routing

import (
	"errors"
	"fmt"
)

// handler decides which profiles a request uses.
type handler struct {
	disaggregated   bool
	decode, prefill string
	encode          string // a profile that may be there, and is not used
	decider         string // the plugin that decides about prefill; empty: by
	by              decider
}

// decider decides whether another server computes a prompt.
type decider struct {
	never    bool
	uncached int // least bytes of the prompt that are not in the cache of the server that decodes
	tokens   int // least length of the prompt
}

// disaggregationPlugin makes the plugins of disaggregated serving. The gateway sets the header for Decision.Prefill,
// also without one of llm-d's older plugins for headers.
func disaggregationPlugin(p *plugin, into func(any) error) (bool, error) {
	switch p.kind {
	case "pd-profile-handler": // llm-d's older one
		c := struct {
			Threshold                   int    `json:"threshold"`
			DecodeProfile               string `json:"decodeProfile"`
			PrefillProfile              string `json:"prefillProfile"`
			PrefixPluginType            string `json:"prefixPluginType"`
			PrefixPluginName            string `json:"prefixPluginName"`
			HashBlockSize               int    `json:"hashBlockSize"`
			PrimaryPort                 int    `json:"primaryPort"`
			DeciderPluginName           string `json:"deciderPluginName"`
			PrefixMatchInfoProducerName string `json:"prefixMatchInfoProducerName"`
		}{DecodeProfile: "decode", PrefillProfile: "prefill"}
		if err := into(&c); err != nil {
			return true, err
		}
		if c.Threshold < 0 || c.DecodeProfile == c.PrefillProfile {
			return true, errors.New("threshold must not be negative, and the two profiles must differ")
		}
		p.handler = &handler{disaggregated: true, decode: c.DecodeProfile, prefill: c.PrefillProfile,
			decider: c.DeciderPluginName, by: decider{uncached: c.Threshold}}
	case "disagg-profile-handler":
		c := struct {
			Profiles struct {
				Decode  string `json:"decode"`
				Prefill string `json:"prefill"`
				Encode  string `json:"encode"`
			} `json:"profiles"`
			Deciders struct {
				Prefill string `json:"prefill"`
				Encode  string `json:"encode"`
			} `json:"deciders"`
			DeciderPluginName string `json:"deciderPluginName"` // the older form of deciders.prefill
		}{}
		c.Profiles.Decode, c.Profiles.Prefill, c.Profiles.Encode = "decode", "prefill", "encode"
		if err := into(&c); err != nil {
			return true, err
		}
		if c.Deciders.Prefill == "" {
			c.Deciders.Prefill = c.DeciderPluginName
		}
		switch {
		case c.Deciders.Encode != "":
			return true, errors.New("deciders.encode is not supported: the server that decodes encodes images and sound")
		case c.Profiles.Decode == c.Profiles.Prefill:
			return true, errors.New("profiles.decode and profiles.prefill must differ")
		}
		p.handler = &handler{disaggregated: true, decode: c.Profiles.Decode, prefill: c.Profiles.Prefill,
			encode: c.Profiles.Encode, decider: c.Deciders.Prefill, by: decider{never: c.Deciders.Prefill == ""}}
	case "prefix-based-pd-decider":
		c := struct {
			NonCachedTokens int `json:"nonCachedTokens"`
			PromptTokens    int `json:"promptTokens"`
		}{}
		if err := into(&c); err != nil {
			return true, err
		}
		if c.NonCachedTokens < 0 || c.PromptTokens < 0 || c.NonCachedTokens > 1<<30 || c.PromptTokens > 1<<30 {
			return true, errors.New("nonCachedTokens and promptTokens must be between 0 and 2^30")
		}
		p.decider = &decider{never: c.NonCachedTokens == 0, uncached: c.NonCachedTokens * bytesPerToken,
			tokens: c.PromptTokens}
	case "always-disagg-pd-decider":
		p.decider = &decider{}
		return true, into(&struct{}{})
	case "prefill-header-handler", "disagg-headers-handler":
		return true, into(&struct {
			PrefillProfile string `json:"prefillProfile"`
			EncodeProfile  string `json:"encodeProfile"`
		}{})
	default:
		return false, nil
	}
	return true, nil
}

// disaggregated finds the profiles of a pool with disaggregated prefill and decode.
func (b *builder) disaggregated(h *handler) error {
	b.c.by = h.by
	if h.decider != "" {
		p, err := b.find(h.decider, "the decider of "+h.prefill)
		if err != nil {
			return err
		}
		if p.decider == nil {
			return fmt.Errorf("%s does not decide about disaggregation", p.kind)
		}
		b.c.by = *p.decider
	}
	b.c.decode = -1
	for i := range b.c.profiles {
		switch name := b.c.profiles[i].name; {
		case name == h.decode:
			b.c.decode = i
		case name == h.prefill:
			b.c.prefill = i
		case name != h.encode:
			return fmt.Errorf("the profile handler uses the profiles %q and %q, not %q", h.decode, h.prefill, name)
		}
	}
	if b.c.decode < 0 || b.c.prefill < 0 && !b.c.by.never {
		return fmt.Errorf("the profile handler needs the profiles %q and %q", h.decode, h.prefill)
	}
	if b.c.by.never {
		b.c.prefill = -1
	}
	return nil
}

// disaggregates reports whether another server computes the prompt of a request, of which the chosen server has blocks
// in its cache.
func (d *decider) disaggregates(r *Request, blocks int) bool {
	missing := r.tokens() * bytesPerToken
	if n := len(r.Prefix); n > 0 {
		missing -= missing * int64(blocks) / int64(n)
	}
	return missing >= int64(d.uncached) && r.tokens() >= int64(d.tokens)
}
