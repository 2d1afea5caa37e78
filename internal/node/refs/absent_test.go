package refs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
)

// What does not exist is requested once for the pods that wait for it, and again for one that comes later, after a
// while, and while nothing is watched. It comes late, goes, and comes again: each time all pods are informed, and no
// request is needed.
func TestObjectsThatDoNotExist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var watches []*watch.FakeWatcher
		var down error
		client.PrependWatchReactor("configmaps", func(clienttesting.Action) (bool, watch.Interface, error) {
			if down != nil {
				return true, nil, down
			}
			watches = append(watches, watch.NewFake())
			return true, watches[len(watches)-1], nil
		})
		client.PrependReactor("get", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
			return down != nil, nil, down
		})
		s := New(client)
		defer stop(t, s)
		informed, gets := 0, 0
		hold := func(pod string) { s.Hold(podWith(pod, "cm"), func(types.UID) { informed++ }) }
		reads := func(what string, requests int) {
			t.Helper()
			synctest.Wait()
			for range 3 {
				cm, err := s.ConfigMap(t.Context(), "ns", "cm")
				if !apierrors.IsNotFound(err) && (down == nil || !errors.Is(err, down)) {
					t.Errorf("%s: %v, %v", what, cm, err)
				} else if down == nil && err.Error() != `configmaps "cm" not found` {
					t.Errorf("%s: %v", what, err)
				}
			}
			if n := count(client, "get") - gets; n != requests {
				t.Errorf("%s: %d requests, want %d", what, n, requests)
			}
			gets = count(client, "get")
		}
		hold("u1")
		reads("at first", 1)
		time.Sleep((2 * time.Minute) - time.Second)
		reads("later", 0)
		hold("u2")
		reads("another pod", 1)
		time.Sleep((2 * time.Minute))
		reads("much later", 1)

		for i, value := range []string{"a", "b"} {
			cm := configMap("cm", fmt.Sprint(i+1), value)
			watches[0].Add(cm)
			synctest.Wait()
			got, err := s.ConfigMap(t.Context(), "ns", "cm")
			if err != nil || got.Data["k"] != value || informed != 4*i+2 || count(client, "get") != gets {
				t.Errorf("%v, %v, informed %d times, %d requests", got, err, informed, count(client, "get")-gets)
			}
			watches[0].Delete(cm)
			reads("deleted", 0)
		}

		down = errors.New("down")
		watches[0].Stop()
		reads("not watched", 3)
		down = nil
		time.Sleep(lastRetry)
		reads("watched again", 0)
		if len(watches) != 2 {
			t.Errorf("%d watches", len(watches))
		}
	})
}

// For 500 pods that wait for one object there are one list, one watch, and at most one request for each; none when it
// comes.
func TestObjectOfManyPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pods = 500
		client := fake.NewClientset()
		s := New(client)
		defer stop(t, s)
		informed := map[types.UID]int{}
		for i := range pods {
			s.Hold(podWith(fmt.Sprint("u", i), "cm"), func(uid types.UID) { informed[uid]++ })
			if _, err := s.ConfigMap(t.Context(), "ns", "cm"); !apierrors.IsNotFound(err) {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		before := len(client.Actions())
		if _, err := client.CoreV1().ConfigMaps("ns").Create(t.Context(), configMap("cm", "1", "a"),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for range pods {
			if _, err := s.ConfigMap(t.Context(), "ns", "cm"); err != nil {
				t.Fatal(err)
			}
		}
		if after := len(client.Actions()); before > pods+2 || after != before+1 || len(informed) != pods {
			t.Errorf("%d requests, then %d; informed %d pods", before, after-before-1, len(informed))
		}
	})
}

// silent is an API server that accepts requests, and answers only what its test wants.
type silent struct {
	answer func(*http.Request) *http.Response
}

func (s silent) RoundTrip(r *http.Request) (*http.Response, error) {
	if a := s.answer(r); a != nil {
		return a, nil
	}
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// A request that is never answered ends; the next one may be answered.
func TestServerThatDoesNotAnswer(t *testing.T) {
	type answer struct{ list, get, watch bool }
	for _, c := range []struct {
		name     string
		at       answer
		err      bool
		within   time.Duration // of the first read
		requests int           // of lists and watches in the first five minutes
	}{
		{"nothing", answer{}, true, 2 * (90 * time.Second), 4},
		{"not the list", answer{get: true}, false, (90 * time.Second), 4},
		{"not the watch", answer{list: true}, false, 0, 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				at, requests := c.at, 0
				body := func(text string) *http.Response { return answerOf(t, text) }
				client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://silent.invalid", QPS: -1,
					Transport: silent{func(r *http.Request) *http.Response {
						watches := r.URL.Query().Get("watch") != ""
						one := r.URL.Query().Get("fieldSelector") == ""
						if !one {
							requests++
						}
						switch {
						case watches && at.watch:
							return streamOf(r.Context())
						case watches || one && !at.get || !one && !at.list:
							return nil
						case one:
							return body(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"cm","namespace":"ns"}}`)
						}
						return body(`{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[` +
							`{"metadata":{"name":"cm","namespace":"ns","resourceVersion":"5"},"immutable":false}]}`)
					}}})
				if err != nil {
					t.Fatal(err)
				}
				s := New(client)
				defer stop(t, s)
				s.Hold(podWith("u1", "cm"), func(types.UID) {})
				began := time.Now()
				_, err = s.ConfigMap(t.Context(), "ns", "cm")
				if (err != nil) != c.err || time.Since(began) != c.within {
					t.Errorf("after %v: %v", time.Since(began), err)
				}
				time.Sleep(5*time.Minute - time.Since(began))
				synctest.Wait()
				if requests != c.requests {
					t.Errorf("%d lists and watches, want %d", requests, c.requests)
				}
				at = answer{true, true, true}
				time.Sleep((90 * time.Second) + lastRetry)
				synctest.Wait()
				s.mu.Lock()
				o := s.held[key{configMaps, "ns", "cm"}]
				if !o.live || len(o.objects) != 1 {
					t.Errorf("not watched once the server answers: %v", o.objects)
				}
				s.mu.Unlock()
			})
		})
	}
}

func answerOf(t *testing.T, text string) *http.Response {
	t.Helper()
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(text))}
}

// streamOf is the answer to a watch that shows nothing.
func streamOf(ctx context.Context) *http.Response {
	r, w := io.Pipe()
	context.AfterFunc(ctx, func() { w.CloseWithError(ctx.Err()) })
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: r}
}
