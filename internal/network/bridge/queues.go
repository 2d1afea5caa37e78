package bridge

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"carob/internal/base/netns"
)

// Queues reports when the connections to a pod that were opened before the data plane stopped routing to it have been
// accepted, and their first bytes read: a program that closes its listener would reset them, or end before it has seen
// their requests. It checks only pods for which Routed is called, until nothing waits, at most for lookFor. It
// implements node.Traffic.
type Queues struct {
	n      *Network
	wake   chan struct{}
	passed func() // returns when all packets that were in the rules at the call have left them

	mu   sync.Mutex
	pods map[types.UID]*look
}

// look is the state of the check of one pod.
type look struct {
	until   time.Time
	passed  bool         // packets that were in the rules have left them
	arrived map[int]bool // CPUs whose queue of arriving packets has been empty since
	done    bool
}

const (
	lookFor   = 2 * time.Second
	lookAgain = 10 * time.Millisecond
	mostLooks = 10_000 // above this number, pods for which Routed is no longer called are removed
)

// Queues returns the checker of the pods of this network.
func (n *Network) Queues() *Queues {
	return &Queues{n: n, wake: make(chan struct{}, 1), passed: packetsPassed, pods: map[types.UID]*look{}}
}

// Routed implements node.Traffic. The first call for a pod begins the check; the last one, which returns false, ends
// it.
func (q *Queues) Routed(pod types.UID) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.pods[pod]
	switch {
	case l == nil:
		if len(q.pods) >= mostLooks {
			clear(q.pods)
		}
		q.pods[pod] = &look{until: time.Now().Add(lookFor), arrived: map[int]bool{}}
		select {
		case q.wake <- struct{}{}:
		default:
		}
	case l.done:
		delete(q.pods, pod)
		return false
	}
	return true
}

// Follow implements node.Traffic; it does the checks.
func (q *Queues) Follow(ctx context.Context, released func(pod types.UID)) {
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-q.wake:
		case <-next.C:
		}
		start := time.Now()
		busy := q.unfinished()
		q.leaveRules(busy)
		for pod, l := range busy {
			if start.Before(l.until) && !q.n.idle(ctx, string(pod), l.arrived) {
				continue
			}
			q.mu.Lock()
			l.done = true
			q.mu.Unlock()
			delete(busy, pod)
			released(pod)
		}
		if len(busy) > 0 { // many pods take longer to check, and are checked less often
			next.Reset(max(lookAgain, 4*time.Since(start)))
		}
	}
}

// leaveRules waits for packets that the old rules sent to a pod and that are still being processed, for example because
// their thread was preempted. It costs only 10 to 30 ms, once for each pod.
func (q *Queues) leaveRules(busy map[types.UID]*look) {
	waited := false
	for _, l := range busy {
		if !l.passed {
			if !waited {
				q.passed()
			}
			waited, l.passed = true, true
		}
	}
}

// packetsPassed waits for an RCU grace period: then all processors have left the code that reads without locks, such as
// the rules of netfilter.
func packetsPassed() {
	const global = 1 // MEMBARRIER_CMD_GLOBAL of linux/membarrier.h
	// If the kernel does not support it, or refuses because of CPUs without a clock tick, there is no wait.
	_, _, _ = unix.Syscall(unix.SYS_MEMBARRIER, global, 0, 0)
}

// unfinished returns the checks that have not ended, by pod.
func (q *Queues) unfinished() map[types.UID]*look {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := map[types.UID]*look{}
	for pod, l := range q.pods {
		if !l.done {
			out[pod] = l
		}
	}
	return out
}

// idle reports whether packets in flight have arrived, and no connection waits to be accepted and read for the first
// time. A pod that cannot be checked is idle.
func (n *Network) idle(ctx context.Context, pod string, arrived map[int]bool) bool {
	path := ""
	n.mu.Lock()
	for _, at := range n.attached {
		if at.UID == pod {
			path = at.NetNS
		}
	}
	n.mu.Unlock()
	if path == "" {
		return true
	}
	stat, err := os.ReadFile("/proc/net/softnet_stat")
	if err == nil && !allArrived(string(stat), arrived) {
		return false
	}
	waiting := 0
	err = netns.Do(path, func() (err error) {
		waiting, err = pending()
		return err
	})
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot read the pending connections of a pod", "pod", pod, "err", err)
	}
	return waiting == 0
}

// allArrived records the CPUs whose queue of packets is empty, and reports whether each queue has been empty since
// arrived was made. The file has a line for each CPU; its twelfth number is the length of the queue, on kernels since
// 5.10.
func allArrived(stat string, arrived map[int]bool) bool {
	all := true
	for i, line := range strings.Split(strings.TrimSpace(stat), "\n") {
		const length = 11
		if f := strings.Fields(line); len(f) <= length || isZero(f[length]) {
			arrived[i] = true
		}
		all = all && arrived[i]
	}
	return all
}

func isZero(hex string) bool {
	n, err := strconv.ParseUint(hex, 16, 64)
	return err != nil || n == 0
}

// pending counts the connections of TCP to listeners of this network namespace that are being established, that no
// process has accepted yet, and of which no process has read anything although something has arrived: a program that
// has accepted a connection, but has not come to its first request, ends without an answer to it.
func pending() (n int, _ error) {
	const established, synReceived = 1, 3 // TCP_ESTABLISHED, TCP_SYN_RECV
	listening := map[uint16]bool{}
	var connections []diagSocket
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		var request diagRequest
		request[0], request[1], request[2] = family, unix.IPPROTO_TCP, 1<<(diagInfo-1)
		binary.NativeEndian.PutUint32(request[4:], 1<<tcpListen|1<<synReceived|1<<established)
		req := nl.NewNetlinkRequest(sockDiagByFamily, unix.NLM_F_DUMP)
		req.AddData(&request)
		sockets, err := req.Execute(unix.NETLINK_INET_DIAG, 0)
		if err != nil {
			return 0, fmt.Errorf("list sockets: %w", err)
		}
		for _, message := range sockets {
			switch s := parseDiag(message); s.state {
			case tcpListen:
				listening[s.port] = true
				n += int(s.unread) // of a listener: the length of its queue
			case synReceived:
				n++
			case established:
				connections = append(connections, s)
			}
		}
	}
	for _, s := range connections {
		if listening[s.port] && s.unread > 0 && uint64(s.unread) == s.received {
			n++
		}
	}
	return n, nil
}

// diagSocket is what the kernel says about a socket of TCP.
type diagSocket struct {
	state    byte
	port     uint16 // its own
	unread   uint32 // bytes that no process has read yet; of a listener, connections that none has accepted
	received uint64 // bytes since the connection was opened
}

// diagInfo is INET_DIAG_INFO of linux/inet_diag.h: the attribute with struct tcp_info.
const diagInfo = 2

// parseDiag reads struct inet_diag_msg and its attributes; of a message that is too short, nothing.
func parseDiag(message []byte) (s diagSocket) {
	const ownPort, receiveQueue, bytesReceived = 4, 56, 128 // offsets; the last one in struct tcp_info
	if len(message) < diagMessageLen {
		return s
	}
	s.state, s.port = message[1], binary.BigEndian.Uint16(message[ownPort:])
	s.unread = binary.NativeEndian.Uint32(message[receiveQueue:])
	attributes, err := nl.ParseRouteAttr(message[diagMessageLen:])
	if err != nil {
		return s
	}
	for _, a := range attributes {
		if a.Attr.Type == diagInfo && len(a.Value) >= bytesReceived+8 {
			s.received = binary.NativeEndian.Uint64(a.Value[bytesReceived:])
		}
	}
	return s
}
