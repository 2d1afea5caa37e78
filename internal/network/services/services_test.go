package services

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"carob/internal/base/netns"
	"carob/internal/base/testwait"
	"carob/internal/core/netplan/addresspool"
)

// driver is a Proxy in the lab's node, with an API that the test writes.
type driver struct {
	*testPlane // for objects and addresses
	api        *fake.Clientset
	proxy      *Proxy
	events     *record.FakeRecorder
	healthz    net.Listener      // of the next run
	pool       *addresspool.Pool // of load balancers' addresses, from the next run
	stop       func()
}

func newDriver(t *testing.T) *driver {
	t.Helper()
	d := &driver{testPlane: &testPlane{lab: newLab(t)}}
	d.driverParts(t)
	d.run()
	t.Cleanup(func() { d.stop() })
	return d
}

func (d *driver) driverParts(t *testing.T) {
	t.Helper()
	d.api, d.events = fake.NewClientset(), record.NewFakeRecorder(100)
	_, err := d.api.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here"}},
		metav1.CreateOptions{})
	d.must(err)
}

// run starts a new process, as it were.
func (d *driver) run() {
	d.proxy = New(Config{Client: d.api, Status: d.api, Events: d.events, Table: "carob-test", Node: "here",
		Healthz: d.healthz, Pool: d.pool,
		Pods:      labNode(false).Pods,
		Addresses: func() []netip.Addr { return labNode(false).Addresses }})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- netns.Do(d.path("node"), func() error { return d.proxy.Run(ctx) }) }()
	d.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			d.t.Error(err)
		}
		ended <- nil
	}
}

func (d *driver) store(name, ip string, change func(*corev1.Service), endpoints ...string) {
	d.t.Helper()
	in := d.service(name, ip, change, endpoints...)
	_, err := d.api.CoreV1().Services("ns").Create(d.t.Context(), in.Service, metav1.CreateOptions{})
	d.must(err)
	d.must(d.api.Tracker().Add(d.slice(name, endpoints...)))
}

func (d *driver) slice(name string, endpoints ...string) *discoveryv1.EndpointSlice {
	s := d.service(name, d.ip(1), nil, endpoints...).Slices[0]
	s.Namespace, s.Name, s.Labels = "ns", name+"-x", map[string]string{discoveryv1.LabelServiceName: name}
	return s
}

func (d *driver) setEndpoints(s *discoveryv1.EndpointSlice) {
	d.t.Helper()
	_, err := d.api.DiscoveryV1().EndpointSlices("ns").Update(d.t.Context(), s, metav1.UpdateOptions{})
	d.must(err)
}

// until waits for a change of the tables after which ok is true.
func (d *driver) until(what string, ok func() bool) {
	d.t.Helper()
	deadline := time.After(testwait.Limit)
	for {
		changed := d.proxy.Changed()
		if ok() {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			d.t.Fatalf("never: %s", what)
		}
	}
}

// The driver follows the API, reports when a pod has left the tables, and reports two claims.
func TestDriver(t *testing.T) {
	d := newDriver(t)
	vip := netip.AddrPortFrom(netip.MustParseAddr(d.ip(1)), 80)
	d.store("a", d.ip(1), d.nodePort(false), "pod1", "pod2")
	d.until("pod1 is in", func() bool { return d.proxy.UseOf("pod1") == In && d.proxy.running })
	if name, _, err := d.reach("pod3", "tcp", vip, patience); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	released := make(chan types.UID, 10)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go d.proxy.Follow(ctx, func(pod types.UID) { released <- pod })
	// pod1 is being deleted: it is out as soon as the table is written.
	s := d.slice("a", "pod1", "pod2")
	s.Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true),
		Terminating: new(true)}
	d.setEndpoints(s)
	if pod := <-released; pod != "pod1" || d.proxy.Routed("pod1") || !d.proxy.Routed("pod2") {
		t.Errorf("%s was released", pod)
	}
	for range 20 {
		if name, _, err := d.reach("pod3", "tcp", vip, patience); name != "pod2" {
			t.Errorf("%s answered: %v", name, err)
		}
	}
	// The other one, too: both are all there is.
	s = s.DeepCopy()
	s.Endpoints[1].Conditions = s.Endpoints[0].Conditions
	d.setEndpoints(s)
	if pod := <-released; pod != "pod2" || d.proxy.UseOf("pod1") != Fallback || d.proxy.UseOf("pod2") != Fallback {
		t.Errorf("%s was released; %v %v", pod, d.proxy.UseOf("pod1"), d.proxy.UseOf("pod2"))
	}
	if name, _, err := d.reach("pod3", "tcp", vip, patience); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	s = s.DeepCopy()
	s.Endpoints = nil
	d.setEndpoints(s)
	d.until("both are out", func() bool { return d.proxy.UseOf("pod1") == Out && d.proxy.UseOf("pod2") == Out })
	if _, _, err := d.reach("pod3", "tcp", vip, patience); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("without endpoints: %v", err)
	}
	if d.proxy.UseOf("nobody") != Out {
		t.Error("a pod of no Service is not Out")
	}
	d.store("b", d.ip(2), d.nodePort(false), "pod1") // the same node port
	if event := <-d.events.Events; event !=
		"Warning ServiceAddressConflict 203.0.113.1:80/TCP belongs to Service ns/a: this Service is not served there" {
		t.Errorf("event %q", event)
	}
	d.must(d.api.CoreV1().Services("ns").Delete(t.Context(), "a", metav1.DeleteOptions{}))
	d.until("the node port leads to pod1", func() bool {
		name, _, _ := d.reach("outside", "tcp", netip.AddrPortFrom(d.addr("node"), 30080), patience)
		return name == "pod1"
	})
}

// A Service of type LoadBalancer gets the node's address, which then answers.
func TestLoadBalancer(t *testing.T) {
	d := newDriver(t)
	d.store("a", d.ip(1), func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer }, "pod1")
	d.until("the node's address answers", func() bool {
		name, _, _ := d.reach("outside", "tcp", netip.AddrPortFrom(d.addr("node"), 80), patience)
		return name == "pod1"
	})
	s, err := d.api.CoreV1().Services("ns").Get(t.Context(), "a", metav1.GetOptions{})
	d.must(err)
	if in := s.Status.LoadBalancer.Ingress; len(in) != 1 || in[0].IP != d.addr("node").String() {
		t.Errorf("status %v", in)
	}
	reached := func() bool {
		name, _, _ := d.reach("outside", "tcp", netip.AddrPortFrom(d.addr("node"), 80), patience)
		return name == "pod1"
	}
	d.proxy.SetOwn([]netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:80")}, nil)
	d.until("the gateway has the port", func() bool { return !reached() })
	refused := "carob itself listens at " + d.addr("node").String() + ":80/TCP: "
	if event := <-d.events.Events; !strings.Contains(event, refused) {
		t.Errorf("event %q", event)
	}
	d.proxy.SetOwn(nil, nil)
	d.until("the gateway has closed the port", reached)
}

// Whatever others do to the rules, they come back, and connections go on; so they do when the driver
// ends and another one starts, which takes what is there over.
func TestDriverHeals(t *testing.T) {
	d := newDriver(t)
	vip := netip.AddrPortFrom(netip.MustParseAddr(d.ip(1)), 80)
	d.store("a", d.ip(1), nil, "pod1")
	d.until("pod1 is in", func() bool { return d.proxy.running && d.proxy.UseOf("pod1") == In })
	c, err := d.dial("pod3", "tcp", vip, patience)
	d.must(err)
	defer c.Close()
	for _, what := range []string{"flush ruleset", "delete table ip carob-test", "flush chain ip carob-test services",
		"flush map ip carob-test endpoints", "restart"} {
		if what == "restart" {
			d.stop()
			if _, _, err := d.reach("pod3", "tcp", vip, patience); err != nil {
				t.Errorf("without the driver: %v", err) // the table stays
			}
			d.run()
			d.until("it runs", func() bool { return d.proxy.running })
		} else {
			d.must(netns.Do(d.path("node"), func() error {
				cmd := exec.Command("sh", "-c", "nft "+what)
				if out, err := cmd.CombinedOutput(); err != nil {
					return fmt.Errorf("nft %s: %w: %s", what, err, out)
				}
				return nil
			}))
			// The kernel's notification, not a timer, ends the wait.
			d.until("healed after "+what, func() bool {
				_, _, err := d.reach("pod3", "tcp", vip, silence)
				return err == nil
			})
		}
		if name, _, err := exchange(c, patience); err != nil || name != "pod1" {
			t.Errorf("%s: the connection: %s, %v", what, name, err)
		}
	}
}

// A client that sends UDP from one port all the time reaches a new endpoint when the old one goes,
// and is refused when there is none (N2.J).
func TestFlowsOfUDP(t *testing.T) {
	d := newDriver(t)
	vip := netip.AddrPortFrom(netip.MustParseAddr(d.ip(1)), 80)
	d.store("a", d.ip(1), d.nodePort(false), "pod1")
	d.until("pod1 is in", func() bool { return d.proxy.running && d.proxy.UseOf("pod1") == In })
	for _, to := range []netip.AddrPort{vip, netip.AddrPortFrom(d.addr("node"), 30080)} {
		d.setEndpoints(d.slice("a", "pod1"))
		d.until("pod1 is in", func() bool { return d.proxy.UseOf("pod1") == In && d.proxy.UseOf("pod2") == Out })
		c, err := d.dial("outside", "udp", to, patience)
		d.must(err)
		defer c.Close()
		answered(t, c, "pod1")
		d.setEndpoints(d.slice("a", "pod2"))
		answered(t, c, "pod2")
	}
}

// lastAck makes a connection one whose last acknowledgement never came, as when its pod ended before it. It returns
// false if the kernel does not track the connection (any more).
func (d *driver) lastAck(port uint16) bool {
	d.t.Helper()
	var handle *netlink.Handle
	d.must(netns.Do(d.path("node"), func() (err error) {
		handle, err = netlink.NewHandle(unix.NETLINK_NETFILTER)
		return err
	}))
	defer handle.Close()
	flows, err := handle.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
	d.must(err)
	for _, f := range flows {
		if f.Forward.SrcPort == port && f.Forward.Protocol == unix.IPPROTO_TCP {
			f.ProtoInfo = &netlink.ProtoInfoTCP{State: tcpLastAck}
			f.TimeOut = 100
			err := handle.ConntrackUpdate(netlink.ConntrackTable, unix.AF_INET, f)
			if errors.Is(err, unix.ENOENT) {
				return false
			}
			d.must(err)
			return true
		}
	}
	return false
}

// A client that takes the port of an ended connection again reaches an endpoint that serves, not the one that
// connection tracking remembers; a connection that is established stays.
func TestFlowsOfTCP(t *testing.T) {
	d := newDriver(t)
	vip := netip.AddrPortFrom(netip.MustParseAddr(d.ip(1)), 80)
	d.store("a", d.ip(1), d.nodePort(false), "pod1")
	d.until("pod1 is in", func() bool { return d.proxy.running && d.proxy.UseOf("pod1") == In })
	kept, err := d.dial("outside", "tcp", vip, patience)
	d.must(err)
	defer kept.Close()
	// again connects from the same port as before, which a reset has freed at once.
	again := func(timeout time.Duration) (name string, err error) {
		var c net.Conn
		err = netns.Do(d.path("outside"), func() error {
			c, err = (&net.Dialer{Timeout: timeout, LocalAddr: &net.TCPAddr{Port: 40404}}).Dial("tcp", vip.String())
			return err
		})
		if err != nil {
			return "", err
		}
		defer c.Close()
		d.must(c.(*net.TCPConn).SetLinger(0))
		name, _, err = exchange(c, timeout)
		return name, err
	}
	if name, err := again(patience); name != "pod1" {
		t.Fatalf("before: %q, %v", name, err)
	}
	if !d.lastAck(40404) {
		t.Fatal("the connection is not tracked")
	}
	d.setEndpoints(d.slice("a", "pod2"))
	d.until("pod2 is in", func() bool { return d.proxy.UseOf("pod1") == Out && d.proxy.UseOf("pod2") == In })
	testwait.For(t, "the same port reaches pod2", func() bool {
		name, _ := again(silence)
		if name == "pod1" {
			d.lastAck(40404) // the pod goes on ending connections, unless this one is forgotten already
		}
		return name == "pod2"
	})
	if name, _, err := exchange(kept, patience); name != "pod1" {
		t.Errorf("the connection that was established: %q, %v", name, err)
	}
}

// answered repeats a message until the right pod responds: each message keeps a flow alive.
func answered(t *testing.T, c net.Conn, want string) {
	t.Helper()
	var last string
	for end := time.Now().Add(patience); time.Now().Before(end); {
		name, _, err := exchange(c, silence)
		if err == nil && name == want {
			return
		}
		last = fmt.Sprint(name, " ", err)
	}
	t.Errorf("%s never answered %s: %s", want, c.RemoteAddr(), last)
}
