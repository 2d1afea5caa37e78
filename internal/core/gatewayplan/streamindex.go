package gatewayplan

import "strings"

// StreamIndex finds the stream of a port by the requested server name: exact, then the longest wildcard, then the one
// without a host name; of several for one host name the first. A search takes as many steps as the name has labels.
type StreamIndex struct {
	exact, wild map[string]int // wild by what follows the asterisk
	all         int            // index + 1; 0: none
}

// IndexStreams indexes the streams of a port.
func IndexStreams(streams []Stream) StreamIndex {
	x := StreamIndex{exact: map[string]int{}, wild: map[string]int{}}
	for i := range streams {
		host := streams[i].Host
		suffix, wild := strings.CutPrefix(host, "*")
		switch {
		case host == "":
			if x.all == 0 {
				x.all = i + 1
			}
		case wild:
			putFirst(x.wild, suffix, i)
		default:
			putFirst(x.exact, host, i)
		}
	}
	return x
}

// putFirst adds an index unless the key has one.
func putFirst(m map[string]int, key string, i int) {
	if _, taken := m[key]; !taken {
		m[key] = i
	}
}

// Find returns the index of the stream for a name in lower case; -1: there is none.
func (x *StreamIndex) Find(name string) int {
	if i, ok := x.exact[name]; ok {
		return i
	}
	for rest := name; len(x.wild) > 0; {
		at := strings.IndexByte(rest, '.')
		if at < 0 {
			break
		}
		if rest = rest[at:]; len(rest) < len(name) { // an asterisk stands for at least one byte
			if i, ok := x.wild[rest]; ok {
				return i
			}
		}
		rest = rest[1:]
	}
	return x.all - 1
}
