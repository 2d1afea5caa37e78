// controllers compares what carob's controllers and upstream's make of the same random
// history: two API servers of carob in this process, empty and alike, one with carob's
// controllers, one with upstream's kube-controller-manager. A script of random requests
// and of what kubelets would do (test/differential/controllers/script.go) goes to both;
// after each step the objects of both sides must become the same, but for names, times
// and UIDs, and at the end the events, too.
//
//	go run ./test/differential/controllers -upstream KUBE-CONTROLLER-MANAGER [-seed 1 -seeds 20 -steps 12]
//
// It prints each difference with its seed and the step, and fails if one is there in each of three tries. With
// -upstream self both sides have carob's controllers, which shows what it can't tell apart.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"carob/internal/apiserver"
	"carob/internal/base/pki"
	"carob/internal/controllers"
	"carob/internal/kinds/apps"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "controllers:", err)
		os.Exit(1)
	}
}

// upstreams are the controllers that are compared, and those that they need.
var upstreams = []string{"replicaset-controller", "replicationcontroller-controller", "deployment-controller",
	"statefulset-controller", "daemonset-controller", "job-controller", "cronjob-controller",
	"horizontal-pod-autoscaler-controller", "disruption-controller", "endpointslice-controller",
	"endpoints-controller", "ttl-after-finished-controller", "persistentvolumeclaim-protection-controller",
	"persistentvolume-binder-controller", "garbage-collector-controller", "serviceaccount-controller",
	"namespace-controller"}

func run(ctx context.Context) error {
	upstream := flag.String("upstream", "", "program of upstream's kube-controller-manager, or self")
	first := flag.Uint64("seed", 1, "the first seed")
	seeds := flag.Uint64("seeds", 20, "how many seeds")
	steps := flag.Int("steps", 12, "requests in each script")
	limit := flag.Duration("limit", 40*time.Second, "how long both sides may take to become the same after a step")
	verbose := flag.Bool("v", false, "print each step")
	flag.Parse()
	if *upstream == "" {
		return errors.New("-upstream is not set: use `make differential-controllers`")
	}
	dir, err := os.MkdirTemp("", "controllers-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var sides [2]*side
	for i, name := range []string{"carob", "upstream"} {
		s, err := open(ctx, filepath.Join(dir, name))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		s.name, sides[i] = name, s
		defer s.stop()
		if err := s.makeNodes(ctx); err != nil {
			return fmt.Errorf("%s: make nodes: %w", name, err)
		}
		if name == "carob" || *upstream == "self" {
			err = s.runOurs(ctx)
		} else {
			err = s.runUpstreams(ctx, *upstream, filepath.Join(dir, "upstream.log"))
		}
		if err != nil {
			return err
		}
	}
	differences, sometimes := 0, 0
	for seed := *first; seed < *first+*seeds; seed++ {
		// What differs once and not again depends on which of two events a controller saw first.
		try, different := 0, true
		for ; different && try < 3; try++ {
			c := compared{sides: sides, limit: *limit, verbose: *verbose,
				namespace: fmt.Sprintf("seed-%d-%d", seed, try), seed: seed, began: time.Now().Truncate(time.Hour)}
			if different, err = c.play(ctx, script(rand.New(rand.NewPCG(seed, 0)), *steps)); err != nil {
				return fmt.Errorf("seed %d: %w", seed, err)
			}
		}
		switch {
		case different:
			differences++
			fmt.Printf("== seed %d differs each time\n", seed)
		case try > 1:
			sometimes++
			fmt.Printf("== seed %d: the same in try %d\n", seed, try)
		}
	}
	fmt.Printf("%d seeds of %d requests: %d differ each time, %d did once\n", *seeds, *steps, differences, sometimes)
	if differences > 0 {
		return errors.New("the sides differ")
	}
	return nil
}

// side is an API server and its controllers.
type side struct {
	name       string
	server     *apiserver.Server
	client     kubernetes.Interface
	dynamic    dynamic.Interface
	kubeconfig string
	ca         []byte
	stops      []func()
}

func (s *side) stop() {
	for _, stop := range slices.Backward(s.stops) {
		stop()
	}
}

func open(ctx context.Context, dir string) (*side, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	keys, err := pki.Open(pki.Config{Dir: filepath.Join(dir, "pki"), ServiceIP: apiserver.FirstServiceIP(nil).AsSlice(),
		NodeName: "none"}, time.Now())
	if err != nil {
		return nil, err
	}
	s := &side{kubeconfig: filepath.Join(dir, "kubeconfig"), ca: keys.CAPEM}
	s.server, err = apiserver.New(ctx, apiserver.Config{DataDir: dir, Listener: l, PKI: keys, UnsafeNoFsync: true})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- s.server.Run(ctx) }()
	s.stops = append(s.stops, func() { cancel(); <-done })
	select {
	case <-s.server.Ready():
	case err := <-done:
		done <- nil
		return nil, errors.Join(errors.New("the API server ended"), err)
	}
	if err := os.WriteFile(s.kubeconfig,
		pki.Kubeconfig("differential", "https://"+l.Addr().String(), keys.CAPEM, keys.Admin.Pair()),
		0o600); err != nil {
		return nil, err
	}
	config := s.server.ClientConfig("differential", user.SystemPrivilegedGroup)
	config.QPS = -1
	if s.client, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	s.dynamic, err = dynamic.NewForConfig(config)
	return s, err
}

// runOurs starts carob's controllers on a side.
func (s *side) runOurs(ctx context.Context) error {
	m, err := controllers.New(s.server.ClientConfig("controllers", user.SystemPrivilegedGroup),
		controllers.Options{RootCA: s.ca, DefaultStatefulSet: apps.DefaultStatefulSet})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	s.stops = append(s.stops, func() { cancel(); <-done })
	<-m.Synced()
	return nil
}

// runUpstreams starts upstream's controllers on a side, with all that could slow them lifted.
func (s *side) runUpstreams(ctx context.Context, program, logFile string) error {
	log, err := os.Create(logFile)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(program, "--kubeconfig="+s.kubeconfig, "--controllers="+strings.Join(upstreams, ","),
		"--leader-elect=false", "--secure-port=0", "--kube-api-qps=1000", "--kube-api-burst=1000",
		"--endpoint-updates-batch-period=0", "--endpointslice-updates-batch-period=0",
		"--concurrent-gc-syncs=5", "--authentication-skip-lookup")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start upstream's controllers: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	s.stops = append(s.stops, func() { _ = cmd.Process.Kill(); <-ended; ended <- nil })
	// They work when the first of them has given the default namespace its account.
	for {
		select {
		case err := <-ended:
			ended <- nil
			text, _ := os.ReadFile(logFile)
			return fmt.Errorf("upstream's controllers ended: %w\n%s", err, text[max(0, len(text)-2000):])
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
		if s.hasAccount(ctx, "default") {
			return nil
		}
	}
}
