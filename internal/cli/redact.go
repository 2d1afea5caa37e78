package cli

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// removed stands where something was that nobody else may see.
const removed = "(removed)"

// redactor takes out of texts and objects what may be secret: values that it was
// told, what looks like a credential, and fields that hold values of users.
type redactor struct {
	known *strings.Replacer
	seen  map[string]bool
}

// shortestSecret is the length from which on a value is looked for in texts: shorter
// ones are words of many sentences. Fields that hold them are removed all the same.
const shortestSecret = 6

// learn takes a secret value, as it is and as it appears encoded.
func (r *redactor) learn(value string) {
	if r.seen == nil {
		r.seen = map[string]bool{}
	}
	for _, part := range append(strings.Split(value, "\n"), value) {
		if part = strings.TrimSpace(part); len(part) < shortestSecret {
			continue
		}
		quoted, _ := json.Marshal(part) // a string: no error
		for _, form := range []string{
			part, strings.Trim(string(quoted), `"`), strings.Trim(fmt.Sprintf("%q", part), `"`),
			base64.StdEncoding.EncodeToString([]byte(part)), base64.RawURLEncoding.EncodeToString([]byte(part)),
		} {
			r.seen[form] = true
		}
	}
	if encoded := base64.StdEncoding.EncodeToString([]byte(value)); len(value) >= shortestSecret {
		r.seen[encoded] = true
	}
	r.known = nil
}

// credentials are things that are secret by their form.
var credentials = []struct {
	form *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)`), removed},
	{regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*`), removed},
	{regexp.MustCompile(`(?i)\b(bearer|basic)\s+[A-Za-z0-9+/=._~-]{6,}`), "$1 " + removed},
	{regexp.MustCompile(`://[^/\s:@"']*:[^/\s@"']+@`), "://" + removed + "@"},
	{regexp.MustCompile(`(?i)([a-z0-9_-]*(?:password|passwd|passphrase|token|secret|api[_-]?key|access[_-]?key|credential)s?["']?\s*[=:]\s*)("[^"]*"|'[^']*'|[^\s"',;]+)`), "${1}" + removed},
}

// text is a text without secrets.
func (r *redactor) text(s string) string {
	if r.known == nil {
		forms := make([]string, 0, len(r.seen))
		for f := range r.seen {
			forms = append(forms, f)
		}
		slices.SortFunc(forms, func(a, b string) int { return len(b) - len(a) }) // a longer one before its beginning
		pairs := make([]string, 0, 2*len(forms))
		for _, f := range forms {
			pairs = append(pairs, f, removed)
		}
		r.known = strings.NewReplacer(pairs...)
	}
	s = r.known.Replace(s)
	for _, c := range credentials {
		s = c.form.ReplaceAllString(s, c.with)
	}
	return s
}

// valueLists are fields with lists of names and values of users, valueMaps fields whose values all are users'.
var (
	valueLists = []string{"env", "httpHeaders"}
	valueMaps  = []string{"data", "binaryData", "stringData", "volumeAttributes", "options"}
)

const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// object is a JSON document without secrets, indented.
func (r *redactor) object(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var doc any
	if err := d.Decode(&doc); err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(r.node(doc)); err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return out.Bytes(), nil
}

func (r *redactor) node(v any) any {
	switch v := v.(type) {
	case string:
		return r.text(v)
	case []any:
		for i := range v {
			v[i] = r.node(v[i])
		}
	case map[string]any:
		delete(v, "managedFields")
		delete(v, lastApplied)
		for name, field := range v {
			values, isMap := field.(map[string]any)
			switch {
			case isMap && slices.Contains(valueMaps, name):
				for k := range values {
					values[k] = removed
				}
			case slices.Contains(valueLists, name):
				v[name] = withoutValues(r.node(field))
			default:
				v[name] = r.node(field)
			}
		}
	}
	return v
}

// withoutValues keeps the names of a list of names and values.
func withoutValues(list any) any {
	elements, _ := list.([]any)
	for _, e := range elements {
		if pair, ok := e.(map[string]any); ok && pair["value"] != nil {
			pair["value"] = removed
		}
	}
	return list
}
