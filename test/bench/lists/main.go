// lists measures lists of many objects, and which part of their time is the client's: client-go lists them from an
// API server of carob, and then the same answers, byte for byte, from a server that only writes what was recorded.
//
//	go run ./test/bench/lists [-pods 2000 -configmaps 10000 -rounds 20]
//
// The API server, the replaying server, and the client are three processes. For each way to list it prints the medians
// of the elapsed time at the client and the mean processor time of server and client, for both servers in turns.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"carob/test/bench/command"
)

// As the first argument, these make this program one of the servers; its directory follows.
const (
	childAPI    = "serve-api"
	childReplay = "serve-recorded"
)

func main() {
	command.Main("lists", func(ctx context.Context) error {
		switch {
		case len(os.Args) == 3 && os.Args[1] == childAPI:
			return serveAPI(ctx, os.Args[2])
		case len(os.Args) == 3 && os.Args[1] == childReplay:
			return serveRecorded(ctx, os.Args[2])
		}
		return run(ctx)
	})
}

const namespace = "bench"

func run(ctx context.Context) error {
	pods := flag.Int("pods", 2000, "how many pods")
	maps := flag.Int("configmaps", 10000, "how many config maps")
	rounds := flag.Int("rounds", 20, "lists of each kind from each server")
	only := flag.String("only", "", "the ways to list whose names contain this")
	seconds := flag.Int("profile", 0, "instead, list so many seconds from the API server; its profile goes to PROFILE")
	flag.Parse()
	dir, err := os.MkdirTemp("", "lists-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	api, err := start(childAPI, dir, "kubeconfig")
	if err != nil {
		return err
	}
	defer api.end()
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
	if err != nil {
		return err
	}
	cfg.QPS = -1
	if err := fill(ctx, cfg, *pods, *maps); err != nil {
		return err
	}
	ways := slices.DeleteFunc(allWays(), func(w way) bool { return !strings.Contains(w.name, *only) })
	if *seconds > 0 {
		return profile(ctx, ways, cfg, *seconds)
	}
	recorded := map[string]answer{}
	for _, w := range ways {
		if err := record(ctx, w, cfg, recorded); err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
	}
	if err := save(filepath.Join(dir, "recorded"), recorded); err != nil {
		return err
	}
	replay, err := start(childReplay, dir, "address")
	if err != nil {
		return err
	}
	defer replay.end()
	address, err := os.ReadFile(filepath.Join(dir, "address"))
	if err != nil {
		return err
	}
	fake := &rest.Config{Host: string(address), QPS: -1, TLSClientConfig: cfg.TLSClientConfig}
	return measure(ctx, ways, *rounds, []source{{"carob", api, cfg}, {"recorded", replay, fake}})
}

// way is one way to list.
type way struct {
	name  string
	json  bool
	plain bool // no compression
	maps  bool // config maps instead of pods
	limit int64
}

func allWays() (all []way) {
	for _, maps := range []bool{false, true} {
		for _, limit := range []int64{0, 500} {
			for _, format := range []way{{name: "protobuf"}, {name: "protobuf, not compressed", plain: true},
				{name: "JSON", json: true}} {
				w := format
				w.maps, w.limit = maps, limit
				what := "pods"
				if maps {
					what = "config maps"
				}
				if limit > 0 {
					what += fmt.Sprintf(" in pages of %d", limit)
				}
				w.name = what + ", " + w.name
				all = append(all, w)
			}
		}
	}
	return all
}

// client is a client that lists this way.
func (w way) config(of *rest.Config) *rest.Config {
	cfg := rest.CopyConfig(of)
	cfg.DisableCompression = w.plain
	cfg.AcceptContentTypes, cfg.ContentType = "application/json", "application/json"
	if !w.json {
		cfg.AcceptContentTypes, cfg.ContentType = "application/vnd.kubernetes.protobuf,application/json",
			"application/vnd.kubernetes.protobuf"
	}
	return cfg
}

// list lists all.
func (w way) list(ctx context.Context, c kubernetes.Interface) error {
	o := metav1.ListOptions{Limit: w.limit}
	for {
		var next string
		if w.maps {
			l, err := c.CoreV1().ConfigMaps(namespace).List(ctx, o)
			if err != nil {
				return err
			}
			next = l.Continue
		} else {
			l, err := c.CoreV1().Pods(namespace).List(ctx, o)
			if err != nil {
				return err
			}
			next = l.Continue
		}
		if o.Continue = next; next == "" {
			return nil
		}
	}
}

// fill makes the objects: pods as they are after a start, with some fields of everything.
func fill(ctx context.Context, cfg *rest.Config, pods, maps int) error {
	cfg = way{}.config(cfg)
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	if _, err := c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		metav1.CreateOptions{}); err != nil {
		return err
	}
	if _, err := c.CoreV1().ServiceAccounts(namespace).Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	for i := range pods {
		if _, err := c.CoreV1().Pods(namespace).Create(ctx, pod(i), metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	for i := range maps {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("m-%05d", i)},
			Data: map[string]string{"key": fmt.Sprint("value ", i)}}
		if _, err := c.CoreV1().ConfigMaps(namespace).Create(ctx, m, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func pod(i int) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p-%05d", i),
		Labels: map[string]string{"app": fmt.Sprint("a", i%10), "pod-template-hash": "5d9c7f"}},
		Spec: corev1.PodSpec{SchedulerName: "nobody", Containers: []corev1.Container{{Name: "c",
			Image: "registry.example/c:1", Command: []string{"/pause"}, Env: []corev1.EnvVar{{Name: "A", Value: "b"}},
			Ports: []corev1.ContainerPort{{ContainerPort: 80}}}}}}
}

// answer is what the API server answered.
type answer struct {
	Header http.Header
	Body   []byte // as it was sent
}

// key distinguishes requests.
func key(r *http.Request) string {
	return strings.Join([]string{r.URL.RequestURI(), r.Header.Get("Accept"), r.Header.Get("Accept-Encoding")}, " ")
}

// record keeps the answers that a client gets.
func record(ctx context.Context, w way, cfg *rest.Config, into map[string]answer) error {
	cfg = w.config(cfg)
	cfg.DisableCompression = true // the transport below requests it
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return recorder{next, w.plain, into} })
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	o := metav1.ListOptions{Limit: w.limit}
	for {
		var next string
		resource := "pods"
		if w.maps {
			resource = "configmaps"
		}
		body := c.CoreV1().RESTClient().Get().Namespace(namespace).Resource(resource).
			VersionedParams(&o, metav1.ParameterCodec).Do(ctx)
		if err := body.Error(); err != nil {
			return err
		}
		list := &metav1.PartialObjectMetadataList{}
		if w.maps {
			l := &corev1.ConfigMapList{}
			err = body.Into(l)
			list.ListMeta = l.ListMeta
		} else {
			l := &corev1.PodList{}
			err = body.Into(l)
			list.ListMeta = l.ListMeta
		}
		if err != nil {
			return err
		}
		if next = list.Continue; next == "" {
			return nil
		}
		o.Continue = next
	}
}
