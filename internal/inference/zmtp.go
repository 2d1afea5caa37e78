package inference

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"
)

// The subscriber's side of ZMTP 3.0 (https://rfc.zeromq.org/spec/23/) without security (NULL): as much as a SUB socket
// needs that connects to one publisher. Frames are untrusted input: each length is checked before memory is allocated.

// Limits of what a publisher may send.
const (
	mostMessage   = 8 << 20 // bytes of a message; vLLM's longest, of a prompt of 128k tokens, has less than 1 MiB
	mostFrames    = 8       // of a message
	mostCommand   = 4 << 10 // bytes
	smallMessage  = 64 << 10
	greetingTime  = 5 * time.Second
	messageTime   = 10 * time.Second // from the first byte of a message to its last
	greetingBytes = 64
)

// largeMessages bounds how many messages above smallMessage are in memory at once. A slow publisher loses its place
// after a second if others wait.
var largeMessages = &places{most: 8, turn: time.Second}

// errSlow is the error of a publisher that blocked large messages of others.
var errSlow = errors.New("a large message does not come to its end in time")

const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
)

var errLong = errors.New("it sends a frame that is too long")

// publisher is a connection to a PUB socket.
type publisher struct {
	conn net.Conn
	in   *bufio.Reader
}

// subscribe does the handshake with a publisher and subscribes to the topics that begin with a text. ctx limits only
// the handshake.
func subscribe(ctx context.Context, conn net.Conn, topic string) (*publisher, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := conn.SetDeadline(time.Now().Add(greetingTime)); err != nil {
		return nil, err
	}
	p := &publisher{conn: conn, in: bufio.NewReaderSize(conn, 16<<10)}
	hello := make([]byte, greetingBytes)
	hello[0], hello[9], hello[10] = 0xff, 0x7f, 3
	copy(hello[12:], "NULL")
	if _, err := conn.Write(hello); err != nil {
		return nil, fmt.Errorf("greet: %w", err)
	}
	if err := p.readGreeting(); err != nil {
		return nil, err
	}
	ready := []byte("\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB")
	if _, err := conn.Write(append([]byte{flagCommand, byte(len(ready))}, ready...)); err != nil {
		return nil, fmt.Errorf("greet: %w", err)
	}
	if err := p.ready(); err != nil {
		return nil, err
	}
	want := append([]byte{0, byte(1 + len(topic)), 1}, topic...) //nolint:gosec // a topic has at most 254 bytes
	if _, err := conn.Write(want); err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return p, conn.SetDeadline(time.Time{})
}

// readGreeting reads the greeting.
func (p *publisher) readGreeting() error {
	var hello [greetingBytes]byte
	if _, err := io.ReadFull(p.in, hello[:10]); err != nil {
		return fmt.Errorf("read the greeting: %w", err)
	}
	if hello[0] != 0xff || hello[9] != 0x7f {
		return errors.New("it does not use ZMTP: is it the port of KV events?")
	}
	if _, err := io.ReadFull(p.in, hello[10:]); err != nil {
		return fmt.Errorf("read the greeting: %w", err)
	}
	if hello[10] < 3 {
		return fmt.Errorf("it uses version %d of ZMTP, not 3", hello[10])
	}
	if mechanism := string(bytes.TrimRight(hello[12:32], "\x00")); mechanism != "NULL" {
		return fmt.Errorf("it requires the security mechanism %q, not NULL", mechanism)
	}
	return nil
}

// ready reads the first command.
func (p *publisher) ready() error {
	flags, body, err := p.frame(nil, mostCommand)
	if err != nil {
		return fmt.Errorf("read its first command: %w", err)
	}
	if flags&flagCommand == 0 || len(body) == 0 || int(body[0]) > len(body)-1 {
		return errors.New("it does not begin with a command")
	}
	name, rest := string(body[1:1+body[0]]), body[1+body[0]:]
	if name == "ERROR" {
		return fmt.Errorf("it refuses: %q", rest)
	}
	if name != "READY" {
		return fmt.Errorf("it begins with the command %q, not READY", name)
	}
	for len(rest) > 0 {
		n := int(rest[0])
		if len(rest) < 1+n+4 {
			return errors.New("its properties end too early")
		}
		key, size := string(rest[1:1+n]), binary.BigEndian.Uint32(rest[1+n:])
		rest = rest[1+n+4:]
		if uint64(size) > uint64(len(rest)) {
			return errors.New("its properties end too early")
		}
		value := string(rest[:size])
		rest = rest[size:]
		if strings.EqualFold(key, "Socket-Type") && value != "PUB" && value != "XPUB" {
			return fmt.Errorf("it is a socket of type %q, not PUB", value)
		}
	}
	return nil
}

// frame reads a frame behind what dst has.
func (p *publisher) frame(dst []byte, most int) (flags byte, out []byte, err error) {
	if flags, err = p.in.ReadByte(); err != nil {
		return 0, dst, err
	}
	if flags&^(flagMore|flagLong|flagCommand) != 0 || flags&flagCommand != 0 && flags&flagMore != 0 {
		return 0, dst, fmt.Errorf("it sends a frame of an unknown kind (%#x)", flags)
	}
	var size uint64
	if flags&flagLong != 0 {
		var long [8]byte
		if _, err = io.ReadFull(p.in, long[:]); err != nil {
			return 0, dst, err
		}
		size = binary.BigEndian.Uint64(long[:])
	} else {
		b, err := p.in.ReadByte()
		if err != nil {
			return 0, dst, err
		}
		size = uint64(b)
	}
	if size > uint64(most) { //nolint:gosec // most is not negative
		return 0, dst, errLong
	}
	// Memory grows with the received data, not with the announced length.
	for left := int(size); left > 0; {
		part := min(left, 64<<10)
		from := len(dst)
		dst = append(dst, make([]byte, part)...)
		if _, err = io.ReadFull(p.in, dst[from:]); err != nil {
			return 0, dst, err
		}
		left -= part
	}
	return flags, dst, nil
}

// next waits for the next message. Its frames are valid until the function that it is passed returns. Messages above
// smallMessage wait for a place, and then must arrive soon: otherwise the error is errSlow.
func (p *publisher) next(ctx context.Context, use func(frames [][]byte)) (err error) {
	if _, err := p.in.Peek(1); err != nil { // as long as it takes
		return err
	}
	if err := p.conn.SetReadDeadline(time.Now().Add(messageTime)); err != nil {
		return err
	}
	var large *place
	defer func() {
		if large == nil {
			return
		}
		largeMessages.give(large)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = errSlow
		}
	}()
	var frames [][]byte
	left := mostMessage
	for {
		most := left
		if large == nil && len(frames) == 0 {
			most = smallMessage // the topic
		}
		if large == nil && p.isLarge() {
			if large, err = largeMessages.take(ctx, p.conn); err != nil {
				return err
			}
		}
		flags, body, err := p.frame(nil, most)
		if err != nil {
			return err
		}
		if flags&flagCommand != 0 { // subscribers ignore all commands
			if len(body) > mostCommand {
				return errLong
			}
			if len(frames) > 0 {
				return errors.New("it sends a command within a message")
			}
			return p.conn.SetReadDeadline(time.Time{})
		}
		frames = append(frames, body)
		left -= len(body)
		if flags&flagMore == 0 {
			break
		}
		if len(frames) == mostFrames {
			return errors.New("it sends a message of too many frames")
		}
	}
	if large != nil {
		largeMessages.read(large)
	}
	if err := p.conn.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	use(frames)
	return nil
}

// isLarge reports whether the frame that comes next is large.
func (p *publisher) isLarge() bool {
	if head, err := p.in.Peek(1); err != nil || head[0]&flagLong == 0 {
		return false // the error occurs again
	}
	head, err := p.in.Peek(9)
	return err == nil && binary.BigEndian.Uint64(head[1:]) > smallMessage
}
