package spec

import "strings"

// expand replaces $(NAME) by the result of lookup, and $$ by $ (L3.131). An unknown reference
// stays as it is and is reported in missing.
func expand(text string, lookup func(name string) (string, bool)) (out string, missing []string) {
	if !strings.Contains(text, "$") {
		return text, nil
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
	return b.String(), missing
}

// ExecProbeCommand expands the variables of the container's env that have a
// literal value in the command of an exec probe (L3.131).
func ExecProbeCommand(command []string, literals map[string]string) []string {
	out := make([]string, len(command))
	for i, word := range command {
		out[i], _ = expand(word, func(name string) (string, bool) {
			v, ok := literals[name]
			return v, ok
		})
	}
	return out
}
