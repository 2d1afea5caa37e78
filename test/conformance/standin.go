package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"k8s.io/client-go/tools/clientcmd"
)

// parts are what tests wait for in waiting.txt. Those with names of controllers
// can be stood in for by upstream's.
var parts = map[string][]string{
	"endpoints": {"endpoints-controller", "endpointslice-controller", "endpointslice-mirroring-controller"},
	"services":  nil, // cluster IPs and node ports that lead somewhere
	"dns":       nil,
	"nodes":     nil, // a second node
}

// standIns reads a list of parts and returns the controllers that they consist of.
func standIns(list string) (names, controllers []string, err error) {
	for _, name := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' }) {
		c := parts[name]
		if c == nil {
			return nil, nil, fmt.Errorf("-stand-in: nothing of upstream's stands in for %q", name)
		}
		names, controllers = append(names, name), append(controllers, c...)
	}
	return names, controllers, nil
}

// wait is why a test can't pass yet.
type wait struct {
	parts  []string
	reason string
}

// onlyFor reports that nothing else than these parts is waited for.
func (w wait) onlyFor(have []string) bool {
	return !slices.ContainsFunc(w.parts, func(p string) bool { return !slices.Contains(have, p) })
}

// startControllers runs some of upstream's controllers, each with the service
// account and the rights that it has in any cluster.
func startControllers(ctx context.Context, kubeconfig string, controllers []string, o options) (stop func() error,
	err error) {
	program := filepath.Join(o.cache, "bin", "kube-controller-manager")
	fmt.Println("building upstream's controllers")
	if _, err := output(ctx, "", "go", "build", "-ldflags", stamps, "-o", program,
		"k8s.io/kubernetes/cmd/kube-controller-manager"); err != nil {
		return nil, err
	}
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return nil, err
	}
	for _, u := range config.AuthInfos {
		u.Impersonate = "system:kube-controller-manager"
	}
	file := filepath.Join(o.out, "controllers.kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(o.out, "controllers.log"))
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program, "--kubeconfig="+file, "--controllers="+strings.Join(controllers, ","),
		"--use-service-account-credentials", "--leader-elect=false", "--secure-port=0")
	cmd.Stdout, cmd.Stderr = log, log
	if err := errors.Join(cmd.Start(), log.Close()); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return func() error {
		select {
		case err := <-ended:
			return fmt.Errorf("upstream's controllers ended before the tests, see %s: %w", log.Name(), err)
		default:
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			return fmt.Errorf("end upstream's controllers: %w", err)
		}
		<-ended
		return os.Remove(file) // it holds a key
	}, nil
}
