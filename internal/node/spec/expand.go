package spec

import (
	"fmt"
	"strings"
)

// maxExpanded limits the bytes of the variables and of the command of a container, together. The kernel starts no
// process with more than 6 MiB of both; a short text of references to references would become terabytes.
const maxExpanded = 8 << 20

var errExpanded = fmt.Errorf("environment, command, and args have more than %d MiB together, with their references",
	maxExpanded>>20)

// room counts what is left of maxExpanded.
type room struct{ used int }

// take fails if there is no room for so many bytes more.
func (r *room) take(bytes int) error {
	if bytes > maxExpanded-r.used {
		return errExpanded
	}
	r.used += bytes
	return nil
}

// expand replaces $(NAME) by the result of lookup, and $$ by $ (L3.131). An unknown reference
// stays as it is and is reported in missing. The result takes room.
func (r *room) expand(text string, lookup func(name string) (string, bool)) (out string, missing []string, err error) {
	if !strings.Contains(text, "$") {
		return text, nil, r.take(len(text))
	}
	if err := r.take(len(text)); err != nil { // at most what stays of it
		return "", nil, err
	}
	var b strings.Builder
	for len(text) > 0 {
		i := strings.IndexByte(text, '$')
		if i < 0 || i+1 == len(text) {
			b.WriteString(text)
			break
		}
		b.WriteString(text[:i])
		text = text[i:]
		switch text[1] {
		case '$':
			b.WriteByte('$')
			text = text[2:]
		case '(':
			end := strings.IndexByte(text, ')')
			if end < 0 {
				b.WriteString("$(")
				text = text[2:]
				continue
			}
			name := text[2:end]
			if value, ok := lookup(name); ok {
				if err := r.take(len(value)); err != nil {
					return "", nil, err
				}
				b.WriteString(value)
			} else {
				b.WriteString(text[:end+1])
				missing = append(missing, name)
			}
			text = text[end+1:]
		default:
			b.WriteByte('$')
			text = text[1:]
		}
	}
	return b.String(), missing, nil
}

// ExecProbeCommand expands the variables of the container's env that have a
// literal value in the command of an exec probe (L3.131).
func ExecProbeCommand(command []string, literals map[string]string) ([]string, error) {
	var r room
	return r.expandAll(command, func(name string) (string, bool) {
		v, ok := literals[name]
		return v, ok
	})
}

func (r *room) expandAll(words []string, lookup func(name string) (string, bool)) ([]string, error) {
	if words == nil {
		return nil, nil
	}
	out := make([]string, len(words))
	for i, w := range words {
		var err error
		if out[i], _, err = r.expand(w, lookup); err != nil {
			return nil, err
		}
	}
	return out, nil
}
