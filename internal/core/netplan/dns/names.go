package dns

import (
	"fmt"
	"net/netip"
	"strings"

	"carob/internal/base/errkind"
)

// Wire returns the wire form of a name in lower case. The name may end in a dot; "." and "" are the
// root. An error of kind Invalid reports an empty label, or one of more than 63 bytes, or a name of
// more than 255 bytes. Backslashes are not interpreted.
func Wire(name string) ([]byte, error) {
	name = strings.TrimSuffix(name, ".")
	out := make([]byte, 0, len(name)+2)
	if name != "" {
		for label := range strings.SplitSeq(strings.ToLower(name), ".") {
			if label == "" || len(label) > 63 {
				return nil, errkind.Errorf(errkind.Invalid, "%q is not a DNS name: a label has %d bytes", name, len(label))
			}
			out = append(append(out, byte(len(label))), label...)
		}
	}
	if out = append(out, 0); len(out) > maxName {
		return nil, errkind.Errorf(errkind.Invalid, "%q is not a DNS name: it has more than 255 bytes", name)
	}
	return out, nil
}

// Text returns a name in wire form as text that ends in a dot, with unusual bytes as \DDD.
func Text(wire []byte) string {
	var b strings.Builder
	for at := 0; at < len(wire) && wire[at] != 0; {
		end := min(at+1+int(wire[at]), len(wire))
		for _, c := range wire[at+1 : end] {
			switch {
			case c == '.' || c == '\\' || c == '"' || c == ';' || c == '(' || c == ')' || c == '@' || c == '$':
				b.WriteByte('\\')
				b.WriteByte(c)
			case c <= ' ' || c > '~':
				fmt.Fprintf(&b, "\\%03d", c)
			default:
				b.WriteByte(c)
			}
		}
		b.WriteByte('.')
		at = end
	}
	if b.Len() == 0 {
		return "."
	}
	return b.String()
}

// labelsOf is the number of labels of a name in wire form, without the root.
func labelsOf(wire []byte) int {
	n := 0
	for at := 0; at < len(wire) && wire[at] != 0; at += 1 + int(wire[at]) {
		n++
	}
	return n
}

// suffix reports whether a zone in wire form contains the question's name, and returns the first
// label of the zone in the name.
func (q *Query) suffix(zone []byte) (label int, ok bool) {
	label = q.labels - labelsOf(zone)
	if label < 0 {
		return 0, false
	}
	return label, string(q.from(label)) == string(zone)
}

// Within reports whether a zone in wire form, in lower case, contains the question's name.
func (q *Query) Within(zone []byte) bool {
	_, ok := q.suffix(zone)
	return ok
}

// label makes the wire form of one label in lower case; nil if it is none.
func wireLabel(s string) []byte {
	if s == "" || len(s) > 63 {
		return nil
	}
	return append([]byte{byte(len(s))}, strings.ToLower(s)...)
}

// dashed is the name of an endpoint without a host name (N4.19).
func dashed(a netip.Addr) string {
	if a.Is4() {
		return strings.ReplaceAll(a.String(), ".", "-")
	}
	s := strings.ReplaceAll(a.String(), ":", "-")
	if strings.HasSuffix(s, "-") {
		s += "0"
	}
	return s
}

// undashed reads the address in a pod's name (N4.23).
func undashed(label []byte) (netip.Addr, bool) {
	s, separator := string(label), ":"
	if strings.Count(s, "-") == 3 && !strings.Contains(s, "--") {
		separator = "."
	}
	a, err := netip.ParseAddr(strings.ReplaceAll(s, "-", separator))
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, false
	}
	return a.Unmap(), true
}

const (
	reverse4 = "\x07in-addr\x04arpa\x00"
	reverse6 = "\x03ip6\x04arpa\x00"
)

// Reverse returns the address for a name below in-addr.arpa or ip6.arpa.
func (q *Query) Reverse() (netip.Addr, bool) {
	if first, ok := q.suffix([]byte(reverse4)); ok {
		if first != 4 {
			return netip.Addr{}, false
		}
		var a [4]byte
		for i := range a {
			n := 0
			digits := q.label(3 - i)
			for _, c := range digits {
				if c < '0' || c > '9' || len(digits) > 3 || len(digits) > 1 && digits[0] == '0' {
					return netip.Addr{}, false
				}
				n = n*10 + int(c-'0')
			}
			if n > 255 || len(digits) == 0 {
				return netip.Addr{}, false
			}
			a[i] = byte(n)
		}
		return netip.AddrFrom4(a), true
	}
	if first, ok := q.suffix([]byte(reverse6)); ok && first == 32 {
		var a [16]byte
		for i := range 32 {
			digit := q.label(31 - i)
			if len(digit) != 1 {
				return netip.Addr{}, false
			}
			at := strings.IndexByte("0123456789abcdef", digit[0])
			if at < 0 {
				return netip.Addr{}, false
			}
			a[i/2] = a[i/2]<<4 | byte(at)
		}
		return netip.AddrFrom16(a), true
	}
	return netip.Addr{}, false
}
