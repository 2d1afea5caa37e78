// Package redact removes secrets from texts and objects. `carob support-bundle` writes nothing that it has not passed
// through it; it must never decide what a bundle contains.
package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// removed replaces what was redacted.
const removed = "(removed)"

// Redactor removes secrets from texts and objects: values added by Add, anything in the form of a credential, and
// fields that hold values set by users. Its zero value is ready to use, by one goroutine at a time.
type Redactor struct {
	replacer *strings.Replacer
	seen     map[string]bool
}

// shortestSecret is the minimum length of a value that is searched for in texts: shorter values are
// common words. Fields that hold them are redacted anyway.
const shortestSecret = 6

// Add adds a secret value, as it is and in its encoded forms.
func (r *Redactor) Add(value string) {
	if r.seen == nil {
		r.seen = map[string]bool{}
	}
	for _, part := range append(strings.Split(value, "\n"), value) {
		if part = strings.TrimSpace(part); len(part) < shortestSecret {
			continue
		}
		quoted, _ := json.Marshal(part) // cannot fail for a string
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
	r.replacer = nil
}

// credentials matches secrets by their form.
var credentials = []struct {
	form *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)`), removed},
	{regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*`), removed},
	{regexp.MustCompile(`(?i)\b(bearer|basic)\s+[A-Za-z0-9+/=._~-]{6,}`), "$1 " + removed},
	{regexp.MustCompile(`://[^/\s:@"']*:[^/\s@"']+@`), "://" + removed + "@"},
	{regexp.MustCompile(`(?i)(^|[\s"'])(--?[a-z0-9_.-]*` + secretName + `\s+)[^\s"'-][^\s"']*`), "${1}${2}" + removed},
	{regexp.MustCompile(
		`(?i)([a-z0-9_-]*` + secretName + `["']?\s*[=:]\s*)("[^"]*"|'[^']*'|[^\s"',;]+)`), "${1}" + removed},
}

// Text returns a text without secrets.
func (r *Redactor) Text(s string) string {
	if r.replacer == nil {
		forms := make([]string, 0, len(r.seen))
		for f := range r.seen {
			forms = append(forms, f)
		}
		// longer ones first: a short one may be their beginning
		slices.SortFunc(forms, func(a, b string) int { return len(b) - len(a) })
		pairs := make([]string, 0, 2*len(forms))
		for _, f := range forms {
			pairs = append(pairs, f, removed)
		}
		r.replacer = strings.NewReplacer(pairs...)
	}
	s = r.replacer.Replace(s)
	for _, c := range credentials {
		s = c.form.ReplaceAllString(s, c.with)
	}
	return s
}

// secretName matches names of values that are secrets.
const secretName = `(?:password|passwd|passphrase|token|secret|api[_-]?key|access[_-]?key|credential)s?`

// secretField matches the name of a field whose text is a secret, secretFlag a flag whose value is the next argument.
var (
	secretField = regexp.MustCompile(`(?i)` + secretName + `$`)
	secretFlag  = regexp.MustCompile(`(?i)^--?[a-z0-9_.-]*` + secretName + `$`)
)

// valueLists are fields with lists of names and values set by users; in valueMaps, all values are
// set by users.
var (
	valueLists = []string{"env", "httpHeaders"}
	valueMaps  = []string{"data", "binaryData", "stringData", "volumeAttributes", "options"}
)

// Object returns an object as indented JSON, without secrets.
func (r *Redactor) Object(v any) ([]byte, error) {
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

func (r *Redactor) node(v any) any {
	switch v := v.(type) {
	case string:
		return r.Text(v)
	case []any:
		flag := false // the element before it
		for i := range v {
			text, isText := v[i].(string)
			if flag && isText && !strings.HasPrefix(text, "-") {
				v[i] = removed
			} else {
				v[i] = r.node(v[i])
			}
			flag = isText && secretFlag.MatchString(text)
		}
	case map[string]any:
		delete(v, "managedFields")
		delete(v, "kubectl.kubernetes.io/last-applied-configuration")
		for name, field := range v {
			values, isMap := field.(map[string]any)
			switch {
			case isMap && slices.Contains(valueMaps, name):
				for k := range values {
					values[k] = removed
				}
			case slices.Contains(valueLists, name):
				v[name] = namesOnly(r.node(field))
			case isText(field) && secretField.MatchString(name):
				v[name] = removed
			default:
				v[name] = r.node(field)
			}
		}
	}
	return v
}

func isText(v any) bool {
	_, ok := v.(string)
	return ok
}

// namesOnly keeps the names in a list of names and values.
func namesOnly(list any) any {
	elements, _ := list.([]any)
	for _, e := range elements {
		if pair, ok := e.(map[string]any); ok && pair["value"] != nil {
			pair["value"] = removed
		}
	}
	return list
}
