package dns

import (
	"strings"

	"carob/internal/base/errkind"
)

// maxCorefile is the length of the longest Corefile that is read, in bytes.
const maxCorefile = 1 << 20

// line is the words of one line of a Corefile, without braces and comments.
type line struct {
	number int
	words  []string
	opens  bool // it ends with {
	closes bool // it is }
}

// lex reads the lines of a Corefile. A word may be quoted, with \" for a quote in it; # begins a
// comment where a word could begin.
func lex(text string) ([]line, error) {
	if len(text) > maxCorefile {
		return nil, errkind.Errorf(errkind.Invalid, "the Corefile has %d bytes, at most %d", len(text), maxCorefile)
	}
	var out []line
	number := 0
	for len(text) > 0 {
		number++
		l := line{number: number}
		var quoted []bool
		for {
			text = strings.TrimLeft(text, " \t\r\v\f")
			if text == "" || text[0] == '\n' || text[0] == '#' {
				break
			}
			if text[0] == '"' {
				word, rest, ok := unquote(text[1:])
				if !ok {
					return nil, errkind.Errorf(errkind.Invalid, "Corefile:%d: a quoted word has no end", number)
				}
				l.words, quoted = append(l.words, word), append(quoted, true)
				number += strings.Count(text[:len(text)-len(rest)], "\n")
				text = rest
				continue
			}
			end := strings.IndexAny(text, " \t\r\v\f\n")
			if end < 0 {
				end = len(text)
			}
			l.words, quoted = append(l.words, text[:end]), append(quoted, false)
			text = text[end:]
		}
		if _, rest, ok := strings.Cut(text, "\n"); ok {
			text = rest
		} else {
			text = ""
		}
		if n := len(l.words); n > 0 && !quoted[n-1] {
			switch l.words[n-1] {
			case "{":
				l.opens, l.words = true, l.words[:n-1]
			case "}":
				if n > 1 {
					return nil, errkind.Errorf(errkind.Invalid, "Corefile:%d: } must be on a line of its own", l.number)
				}
				l.closes, l.words = true, nil
			}
		}
		if len(l.words) > 0 || l.opens || l.closes {
			out = append(out, l)
		}
	}
	return out, nil
}

func unquote(text string) (word, rest string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '\\' && i+1 < len(text) && text[i+1] == '"':
			i++
			b.WriteByte('"')
		case text[i] == '"':
			return b.String(), text[i+1:], true
		default:
			b.WriteByte(text[i])
		}
	}
	return "", "", false
}

// directive is one directive of a server block.
type directive struct {
	line
	body []line
}

// block is one server block.
type block struct {
	number     int
	keys       []string
	directives []directive
}

// blocks groups the lines of a Corefile.
func blocks(text string) ([]block, error) {
	lines, err := lex(text)
	if err != nil {
		return nil, err
	}
	var out []block
	var keys []string
	for i := 0; i < len(lines); i++ {
		l := lines[i]
		if l.closes {
			return nil, errkind.Errorf(errkind.Invalid, "Corefile:%d: } without {", l.number)
		}
		for _, w := range l.words {
			for k := range strings.SplitSeq(w, ",") {
				if k != "" {
					keys = append(keys, k)
				}
			}
		}
		if !l.opens {
			continue
		}
		b := block{number: l.number, keys: keys}
		keys = nil
		for i++; ; i++ {
			if i == len(lines) {
				return nil, errkind.Errorf(errkind.Invalid, "Corefile:%d: { has no }", b.number)
			}
			if lines[i].closes {
				break
			}
			d := directive{line: lines[i]}
			if len(d.words) == 0 {
				return nil, errkind.Errorf(errkind.Invalid, "Corefile:%d: { without a directive", d.number)
			}
			for d.opens {
				if i++; i == len(lines) {
					return nil, errkind.Errorf(errkind.Invalid, "Corefile:%d: { has no }", d.number)
				}
				if lines[i].closes {
					break
				}
				if lines[i].opens {
					return nil, errkind.Errorf(errkind.Invalid, "Corefile:%d: { inside of a directive", lines[i].number)
				}
				d.body = append(d.body, lines[i])
			}
			b.directives = append(b.directives, d)
		}
		if len(b.keys) == 0 {
			return nil, errkind.Errorf(errkind.Invalid, "Corefile:%d: a server block names its zones before {", b.number)
		}
		out = append(out, b)
	}
	if len(keys) > 0 {
		return nil, errkind.Errorf(errkind.Invalid, "Corefile: %q is followed by no {", strings.Join(keys, " "))
	}
	if len(out) == 0 {
		return nil, errkind.Errorf(errkind.Invalid, "the Corefile has no server block")
	}
	return out, nil
}
