package dns

import "encoding/binary"

// Type is a DNS record type (RFC 1035, 3596, 2782).
type Type uint16

// Types of the zone.
const (
	TypeA     Type = 1
	TypeNS    Type = 2
	TypeCNAME Type = 5
	TypeSOA   Type = 6
	TypePTR   Type = 12
	TypeMX    Type = 15
	TypeTXT   Type = 16
	TypeAAAA  Type = 28
	TypeSRV   Type = 33
	TypeOPT   Type = 41
	TypeIXFR  Type = 251
	TypeAXFR  Type = 252
)

// ClassIN is the class of all names (RFC 1035).
const ClassIN = 1

// Rcode is a response code (RFC 1035, 6891); only the lower four bits are in the header.
type Rcode uint16

// Response codes.
const (
	Success        Rcode = 0
	FormatError    Rcode = 1
	ServerFailure  Rcode = 2
	NameError      Rcode = 3 // NXDOMAIN
	NotImplemented Rcode = 4
	Refused        Rcode = 5
	BadVersion     Rcode = 16
)

// Sizes of messages and names in bytes.
const (
	MaxMessage  = 65535
	maxName     = 255 // RFC 1035, with the length bytes
	headerSize  = 12
	optSize     = 11 // of an OPT record without options
	minUDP      = 512
	maxUDP      = 4096
	maxPointer  = 1 << 14
	maxLabels   = 127
	recordFixed = 10 // type, class, TTL, length of the data
)

// Bits of the third and fourth byte of a header.
const (
	bitResponse  = 0x80 // QR
	maskOpcode   = 0x78
	bitAuthority = 0x04 // AA
	bitTruncated = 0x02 // TC
	bitRecursion = 0x01 // RD
	bitAvailable = 0x80 // RA
	bitChecking  = 0x10 // CD
)

// Query is a parsed question. It refers to no memory of the message.
type Query struct {
	ID    uint16
	Type  Type
	Class uint16

	Recursion, Checking bool // RD, CD

	EDNS    bool
	Version uint8  // of EDNS
	DO      bool   // the client requests DNSSEC records
	UDPSize uint16 // the size that the client accepts over UDP, from 512 to 4096

	name   [maxName]byte // wire form, as in the query
	lower  [maxName]byte // wire form, lower case
	length int           // of name, with the root label
	starts [maxLabels + 1]uint8
	labels int // number of labels without the root
}

// Verdict is what to do with a message.
type Verdict int

// Verdicts of Parse.
const (
	Drop   Verdict = iota // no answer: a response, or too short to have a header
	Reject                // answer with the response code
	Accept
)

// Parse reads a message that came from a client. With Reject, the query has the parts that a
// response repeats; the question may be missing (see Begin).
func (q *Query) Parse(msg []byte) (Verdict, Rcode) {
	*q = Query{UDPSize: minUDP}
	if len(msg) < headerSize || msg[2]&bitResponse != 0 {
		return Drop, 0
	}
	q.ID = binary.BigEndian.Uint16(msg)
	q.Recursion, q.Checking = msg[2]&bitRecursion != 0, msg[3]&bitChecking != 0
	if msg[2]&maskOpcode != 0 {
		return Reject, NotImplemented
	}
	counts := [4]int{}
	for i := range counts {
		counts[i] = int(binary.BigEndian.Uint16(msg[4+2*i:]))
	}
	if counts[0] != 1 || counts[1] != 0 || counts[2] != 0 || counts[3] > 2 {
		return Reject, FormatError
	}
	at, ok := q.readName(msg, headerSize)
	if !ok || at+4 > len(msg) {
		q.length = 0
		return Reject, FormatError
	}
	q.Type, q.Class = Type(binary.BigEndian.Uint16(msg[at:])), binary.BigEndian.Uint16(msg[at+2:])
	at += 4
	for range counts[3] {
		if at, ok = q.readAdditional(msg, at); !ok {
			return Reject, FormatError
		}
	}
	if q.Version != 0 {
		return Reject, BadVersion
	}
	return Accept, Success
}

// readName reads the question's name; compression pointers are invalid here.
func (q *Query) readName(msg []byte, at int) (int, bool) {
	n := 0
	for {
		if at >= len(msg) {
			return 0, false
		}
		length := int(msg[at])
		if length > 63 || n+1+length > maxName || at+1+length > len(msg) {
			return 0, false
		}
		q.name[n], q.lower[n] = msg[at], msg[at]
		if length == 0 {
			q.length = n + 1
			return at + 1, true
		}
		q.starts[q.labels] = uint8(n)
		q.labels++
		for i := 1; i <= length; i++ {
			c := msg[at+i]
			q.name[n+i] = c
			if 'A' <= c && c <= 'Z' {
				c += 'a' - 'A'
			}
			q.lower[n+i] = c
		}
		n, at = n+1+length, at+1+length
	}
}

// readAdditional reads an OPT record (RFC 6891) and skips another, such as a signature.
func (q *Query) readAdditional(msg []byte, at int) (int, bool) {
	start := at
	for {
		if at >= len(msg) {
			return 0, false
		}
		c := int(msg[at])
		if c&0xc0 == 0xc0 {
			at += 2
			break
		}
		if c > 63 || at-start > maxName {
			return 0, false
		}
		at += 1 + c
		if c == 0 {
			break
		}
	}
	if at+recordFixed > len(msg) {
		return 0, false
	}
	end := at + recordFixed + int(binary.BigEndian.Uint16(msg[at+8:]))
	if end > len(msg) {
		return 0, false
	}
	if Type(binary.BigEndian.Uint16(msg[at:])) == TypeOPT {
		if q.EDNS || msg[start] != 0 {
			return 0, false
		}
		q.EDNS, q.Version, q.DO = true, msg[at+5], msg[at+6]&0x80 != 0
		q.UDPSize = min(max(binary.BigEndian.Uint16(msg[at+2:]), minUDP), maxUDP)
	}
	return end, true
}

// Name returns the name in wire form as the client wrote it; it is valid as long as the query.
func (q *Query) Name() []byte { return q.name[:q.length] }

// Lower returns the name in wire form in lower case; it is valid as long as the query.
func (q *Query) Lower() []byte { return q.lower[:q.length] }

// label returns a label in lower case, counted from the left.
func (q *Query) label(i int) []byte {
	at := int(q.starts[i])
	return q.lower[at+1 : at+1+int(q.lower[at])]
}

// from returns the lower-case wire form of the name from a label on.
func (q *Query) from(i int) []byte {
	if i >= q.labels {
		return q.lower[q.length-1 : q.length]
	}
	return q.lower[q.starts[i]:q.length]
}

// Builder writes an answer into a buffer, at most Limit bytes of it. Records that do not fit are
// left out; in the answer section that sets the bit TC (RFC 2181).
type Builder struct {
	buf   []byte
	limit int
	room  int // limit without what the OPT record needs

	counts    [4]uint16 // question, answer, authority, additional
	truncated bool

	query *Query
}

// Begin starts an answer with the query's question. It writes behind dst[:0]. udp limits the answer
// to the size that the client accepts.
func (b *Builder) Begin(dst []byte, q *Query, udp bool) {
	*b = Builder{buf: dst[:0], limit: MaxMessage, query: q}
	if udp {
		b.limit = int(q.UDPSize)
	}
	b.room = b.limit
	if q.EDNS {
		b.room -= optSize
	}
	b.buf = append(b.buf, make([]byte, headerSize)...)
	if q.length > 0 {
		b.buf = append(b.buf, q.Name()...)
		b.buf = binary.BigEndian.AppendUint16(b.buf, uint16(q.Type))
		b.buf = binary.BigEndian.AppendUint16(b.buf, q.Class)
		b.counts[0] = 1
	}
}

// Sections of an answer.
const (
	sectionAnswer = 1 + iota
	sectionAuthority
	sectionAdditional
)

// record writes a record whose owner is the question's name from a label on, and which ends with
// data. It reports whether it fit.
func (b *Builder) record(section int, owner uint16, typ Type, ttl uint32, data ...byte) bool {
	if len(b.buf)+2+recordFixed+len(data) > b.room {
		b.full(section)
		return false
	}
	b.buf = binary.BigEndian.AppendUint16(b.buf, 0xc000|owner)
	b.buf = binary.BigEndian.AppendUint16(b.buf, uint16(typ))
	b.buf = binary.BigEndian.AppendUint16(b.buf, ClassIN)
	b.buf = binary.BigEndian.AppendUint32(b.buf, ttl)
	b.buf = binary.BigEndian.AppendUint16(b.buf, uint16(len(data)))
	b.buf = append(b.buf, data...)
	b.counts[section]++
	return true
}

func (b *Builder) full(section int) {
	if section == sectionAnswer {
		b.truncated = true
	}
}

// ownerOf is the place of the question's name from a label on.
func (b *Builder) ownerOf(label int) uint16 {
	if label >= b.query.labels {
		return uint16(headerSize + b.query.length - 1)
	}
	return uint16(headerSize) + uint16(b.query.starts[label])
}

// nameRecord writes a record whose data ends with a name (not compressed: RFC 2782 and 3597), and
// returns the place of that name; 0 if the record does not fit or the place cannot be pointed to.
func (b *Builder) nameRecord(typ Type, ttl uint32, before []byte,
	name []byte) (at uint16, ok bool) {
	if len(name) > maxName || !b.record(sectionAnswer, headerSize, typ, ttl, append(before, name...)...) {
		return 0, false
	}
	if place := len(b.buf) - len(name); place < maxPointer {
		at = uint16(place)
	}
	return at, true
}

// End completes the header and returns the message, which shares memory with the buffer of Begin.
func (b *Builder) End(rcode Rcode, authoritative, recursive bool) []byte {
	if b.query.EDNS {
		b.buf = append(b.buf, 0, 0, byte(TypeOPT), maxUDP>>8, maxUDP&0xff, byte(rcode>>4), 0, 0, 0, 0, 0)
		if b.query.DO {
			b.buf[len(b.buf)-4] = 0x80
		}
		b.counts[sectionAdditional]++
	}
	binary.BigEndian.PutUint16(b.buf, b.query.ID)
	b.buf[2], b.buf[3] = bitResponse, byte(rcode&0xf)
	if authoritative {
		b.buf[2] |= bitAuthority
	}
	if b.truncated {
		b.buf[2] |= bitTruncated
	}
	if b.query.Recursion {
		b.buf[2] |= bitRecursion
	}
	if recursive {
		b.buf[3] |= bitAvailable
	}
	if b.query.Checking {
		b.buf[3] |= bitChecking
	}
	for i, n := range b.counts {
		binary.BigEndian.PutUint16(b.buf[4+2*i:], n)
	}
	return b.buf
}
