package httproute

import (
	"slices"
	"strconv"
	"strings"
)

// Filters change requests and responses, in this order: CORS, redirect, header changes, rewrite,
// mirrors.
type Filters struct {
	Request, Response []HeaderChange
	Redirect          *Redirect
	Rewrite           *Rewrite
	Mirrors           []Mirror
	CORS              *CORS
}

// HeaderChange is one header filter: it sets, adds, and removes headers. Names are canonical.
type HeaderChange struct {
	Set, Add []HeaderValue
	Remove   []string
}

// HeaderValue is a header.
type HeaderValue struct{ Name, Value string }

// PathChange replaces a path. The zero value changes nothing.
type PathChange struct {
	Kind  PathChangeKind
	Value string
}

// PathChangeKind defines which part of a path is replaced.
type PathChangeKind int

// The kinds.
const (
	KeepPath PathChangeKind = iota
	ReplaceFull
	ReplacePrefix // the part that the prefix of the match matched
	ReplaceGroups // an expression of ingress-nginx: $1 to $9 are groups of the path's regular expression
)

// Apply returns the new path of a request whose path matched.
func (c PathChange) Apply(path string, met Met) string {
	switch c.Kind {
	case ReplaceFull:
		return EscapePath(c.Value)
	case ReplacePrefix:
		rest := ""
		if met.Kind == Prefix {
			rest = strings.TrimPrefix(path, strings.TrimRight(met.Value, "/"))
		}
		if out := strings.TrimRight(c.Value, "/") + rest; strings.HasPrefix(out, "/") {
			return EscapePath(out)
		}
		return "/" + EscapePath(rest)
	case ReplaceGroups:
		if met.expr == nil {
			return path
		}
		return EscapePath(expandGroups(c.Value, met.expr.FindStringSubmatch(path)))
	case KeepPath:
	}
	return path
}

// expandGroups replaces $1 to $9.
func expandGroups(text string, groups []string) string {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '$' && i+1 < len(text) && '1' <= text[i+1] && text[i+1] <= '9' {
			if n := int(text[i+1] - '0'); n < len(groups) {
				b.WriteString(groups[n])
			}
			i++
			continue
		}
		b.WriteByte(text[i])
	}
	if out := b.String(); strings.HasPrefix(out, "/") {
		return out
	}
	return "/" + b.String()
}

// Rewrite changes a request before it is sent to a backend.
type Rewrite struct {
	Host string // empty: kept
	Path PathChange
}

// Redirect answers a request with another URL.
type Redirect struct {
	Scheme, Host string // empty: the request's
	Port         int32  // 0: see Location
	Status       int
	Path         PathChange
}

// Location returns the URL of a redirect for a request by scheme to host at the listener's port. A redirect without a
// port gets the well-known one of its scheme, and without a scheme the listener's (HTTPRequestRedirectFilter.port).
func (r *Redirect) Location(scheme, host string, listener int32, path, query string, met Met) string {
	port := r.Port
	if port == 0 && r.Scheme == "" {
		port = listener
	}
	if r.Scheme != "" {
		scheme = r.Scheme
	}
	if r.Host != "" {
		host = r.Host
	}
	out := scheme + "://" + host
	if port != 0 && !(scheme == "http" && port == 80) && !(scheme == "https" && port == 443) {
		out += ":" + strconv.Itoa(int(port))
	}
	out += r.Path.Apply(path, met)
	if query != "" {
		out += "?" + query
	}
	return out
}

// Mirror sends a copy of a part of the requests to another backend, whose responses are ignored.
type Mirror struct {
	Backend                Backend
	Numerator, Denominator int32
}

// CORS defines which cross-origin requests of browsers are allowed.
type CORS struct {
	Origins         []string // "*", or scheme://host[:port]; a host may begin with "*."
	Credentials     bool
	Methods         []string // may be "*"
	Headers, Expose []string // may be "*"
	MaxAge          int32    // seconds
}

// AllowsOrigin reports whether the list of origins has one.
func (c *CORS) AllowsOrigin(origin string) bool {
	return slices.ContainsFunc(c.Origins, func(pattern string) bool {
		if pattern == "*" || strings.EqualFold(pattern, origin) {
			return true
		}
		before, after, wild := strings.Cut(pattern, "*")
		if !wild || len(origin) <= len(before)+len(after) || !strings.EqualFold(origin[:len(before)], before) ||
			!strings.EqualFold(origin[len(origin)-len(after):], after) {
			return false
		}
		for _, c := range []byte(origin[len(before) : len(origin)-len(after)]) {
			if !letter(c) {
				return false
			}
		}
		return true
	})
}

// letter reports whether a host name may have the character.
func letter(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '.' || c == '_'
}

// Answer returns the headers for a request of an origin; none when it is not allowed.
func (c *CORS) Answer(origin string) []HeaderValue {
	if origin == "" || !c.AllowsOrigin(origin) {
		return nil
	}
	out := []HeaderValue{{"Access-Control-Allow-Origin", origin}, {"Vary", "Origin"}}
	if c.Credentials {
		out = append(out, HeaderValue{"Access-Control-Allow-Credentials", "true"})
	}
	if len(c.Expose) > 0 {
		out = append(out, HeaderValue{"Access-Control-Expose-Headers", strings.Join(c.Expose, ", ")})
	}
	return out
}

// Preflight returns the response headers for a CORS preflight request.
func (c *CORS) Preflight(origin, method, headers string) []HeaderValue {
	out := c.Answer(origin)
	if out == nil {
		return nil
	}
	if slices.Contains(c.Methods, "*") {
		out = append(out, HeaderValue{"Access-Control-Allow-Methods", method})
	} else if len(c.Methods) > 0 {
		out = append(out, HeaderValue{"Access-Control-Allow-Methods", strings.Join(c.Methods, ", ")})
	}
	if slices.Contains(c.Headers, "*") {
		if headers != "" {
			out = append(out, HeaderValue{"Access-Control-Allow-Headers", headers})
		}
	} else if len(c.Headers) > 0 {
		out = append(out, HeaderValue{"Access-Control-Allow-Headers", strings.Join(c.Headers, ", ")})
	}
	if c.MaxAge > 0 {
		out = append(out, HeaderValue{"Access-Control-Max-Age", strconv.Itoa(int(c.MaxAge))})
	}
	return out
}
