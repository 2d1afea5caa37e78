package probe

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"carob/internal/core/podlife"
)

// serverVariable makes the test binary the server of BenchmarkHTTPGet: its processor time must not count.
const serverVariable = "CAROB_TEST_PROBE_SERVER"

func TestMain(m *testing.M) {
	if os.Getenv(serverVariable) == "" {
		os.Exit(m.Run())
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		os.Exit(1)
	}
	_, _ = io.WriteString(os.Stdout, l.Addr().String()+"\n") // the test ends without it
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "ok")
	}), ReadHeaderTimeout: time.Minute}
	_ = s.Serve(l) // until the test ends
}

// The processor time of a probe: as carob makes it, and with the client of net/http on carob's own transport, which
// goes on with odd answers.
//
//	go test -run - -bench HTTPGet -benchtime 3000x ./internal/node/probe
func BenchmarkHTTPGet(b *testing.B) {
	server := exec.CommandContext(b.Context(), os.Args[0])
	server.Env = append(os.Environ(), serverVariable+"=1")
	in, err := server.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := server.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := server.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() {
		in.Close()
		_ = server.Wait() // it ends with its input
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	addr, err := netip.ParseAddrPort(line[:len(line)-1])
	if err != nil {
		b.Fatal(err)
	}
	to := Target{Container: &corev1.Container{}, PodIP: addr.Addr().String()}
	action := &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(int32(addr.Port()))}
	socket := func(ctx context.Context) (podlife.ProbeVerdict, string) {
		return httpGet(ctx, to, action, time.Minute)
	}
	for _, way := range []struct {
		name     string
		together int // how many are due at the same time
		run      func(context.Context) (podlife.ProbeVerdict, string)
	}{
		{"socket", 1, socket},
		{"socket, ten together", 10, socket},
		{"net-http", 1, func(ctx context.Context) (podlife.ProbeVerdict, string) {
			return get(ctx, to, action, oneRequest{})
		}},
	} {
		b.Run(way.name, func(b *testing.B) {
			b.ReportAllocs()
			began := used(b)
			// One after the other they would find all caches warm.
			due := time.NewTicker(time.Duration(way.together) * time.Millisecond)
			defer due.Stop()
			var probes sync.WaitGroup
			for i := 0; b.Loop(); i++ {
				if i%way.together == 0 {
					<-due.C
				}
				probes.Go(func() {
					if v, text := way.run(b.Context()); v != podlife.ProbeSuccess {
						b.Errorf("%s: %s", v, text)
					}
				})
			}
			probes.Wait()
			user, system := used(b).sub(began)
			b.ReportMetric(float64(user.Microseconds())/float64(b.N), "user-µs/op")
			b.ReportMetric(float64(system.Microseconds())/float64(b.N), "system-µs/op")
		})
	}
}

// processor is what this process has used.
type processor struct{ user, system time.Duration }

func used(b *testing.B) processor {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return processor{time.Duration(r.Utime.Nano()), time.Duration(r.Stime.Nano())}
}

func (p processor) sub(o processor) (user, system time.Duration) {
	return p.user - o.user, p.system - o.system
}
