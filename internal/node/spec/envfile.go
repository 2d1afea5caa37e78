package spec

import (
	"errors"
	"fmt"
	"strings"
)

var errEnvFile = errors.New("couldn't parse env file")

// parseEnvFile returns the first value of each key in a file of KEY='value' entries (L3.136). Values
// are literal, in single quotes, and may span lines.
func parseEnvFile(text string) (map[string]string, error) {
	values := map[string]string{}
	line := 1
	for len(text) > 0 {
		head, rest, _ := strings.Cut(text, "\n")
		trimmed := strings.TrimLeft(head, " \t\r")
		if strings.TrimSpace(trimmed) == "" || trimmed[0] == '#' {
			text = rest
			line++
			continue
		}
		name, after, ok := strings.Cut(trimmed, "=")
		if !ok || name == "" || strings.ContainsAny(name, " \t\r'") {
			return nil, fmt.Errorf("%w: line %d: want KEY='value'", errEnvFile, line)
		}
		// The value may go beyond this line: continue in text instead of head.
		text = text[len(head)-len(after):]
		var v string
		switch {
		case after == "" || after[0] == ' ' || after[0] == '\t' || after[0] == '\r':
			if tail := strings.TrimSpace(after); tail != "" && tail[0] != '#' {
				return nil, fmt.Errorf("%w: line %d: blank after =", errEnvFile, line)
			}
			text = rest
			line++
		case after[0] == '\'':
			end := strings.IndexByte(text[1:], '\'')
			if end < 0 {
				return nil, fmt.Errorf("%w: line %d: no closing quote", errEnvFile, line)
			}
			v = text[1 : 1+end]
			line += strings.Count(v, "\n")
			var tail string
			tail, text, _ = strings.Cut(text[end+2:], "\n")
			if tail = strings.TrimSpace(tail); tail != "" && tail[0] != '#' {
				return nil, fmt.Errorf("%w: line %d: text after the closing quote", errEnvFile, line)
			}
			line++
		default:
			return nil, fmt.Errorf("%w: line %d: value not in single quotes", errEnvFile, line)
		}
		if _, found := values[name]; !found {
			values[name] = v
		}
	}
	return values, nil
}
