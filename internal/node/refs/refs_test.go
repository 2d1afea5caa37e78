package refs

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func configMap(name, version, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, ResourceVersion: version},
		Data: map[string]string{"k": value}}
}

func podWith(uid string, names ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", UID: types.UID(uid)}}
	for _, n := range names {
		v := corev1.Volume{Name: n}
		v.ConfigMap = &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: n}}
		p.Spec.Volumes = append(p.Spec.Volumes, v)
	}
	return p
}

// count counts the calls of one verb.
func count(client *fake.Clientset, verb string) int {
	n := 0
	for _, a := range client.Actions() {
		if a.Matches(verb, "configmaps") {
			n++
		}
	}
	return n
}

// One watch for an object, however many pods refer to it; changes reach all of
// them; it ends a while after the last pod.
func TestObjectsAreWatchedWhileHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(configMap("cm", "1", "a"))
		s := New(client)
		var notified []types.UID
		changed := func(uid types.UID) { notified = append(notified, uid) }
		s.Hold(podWith("u1", "cm"), changed)
		s.Hold(podWith("u2", "cm"), changed)
		s.Hold(podWith("u2", "cm"), changed)
		for range 3 {
			cm, err := s.ConfigMap(t.Context(), "ns", "cm")
			if err != nil || cm.Data["k"] != "a" {
				t.Fatal(cm, err)
			}
		}
		synctest.Wait()
		if count(client, "list") != 1 || count(client, "watch") != 1 || count(client, "get") != 0 {
			t.Errorf("calls: %v", client.Actions())
		}
		if len(notified) != 0 {
			t.Errorf("the first value is not a change: told %v", notified)
		}
		if _, err := client.CoreV1().ConfigMaps("ns").Update(t.Context(), configMap("cm", "2", "b"),
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(notified) != 2 {
			t.Errorf("told %v, want both pods", notified)
		}
		if cm, err := s.ConfigMap(t.Context(), "ns", "cm"); err != nil || cm.Data["k"] != "b" {
			t.Error(cm, err)
		}

		s.Release("u1")
		s.Release("u2")
		time.Sleep(linger / 2)
		s.Hold(podWith("u3", "cm"), changed)
		s.Release("u3")
		time.Sleep(linger / 2)
		if len(s.held) != 1 {
			t.Error("forgotten too early")
		}
		time.Sleep(linger)
		if len(s.held) != 0 || count(client, "list") != 1 {
			t.Errorf("still held, or listed again: %v", client.Actions())
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Run(ctx); err != nil { // waits for all goroutines
			t.Error(err)
		}
	})
}

// An object that does not exist yet is found as soon as it does, and its pods are notified.
func TestObjectThatComesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		s := New(client)
		notified := 0
		s.Hold(podWith("u1", "cm"), func(types.UID) { notified++ })
		if _, err := s.ConfigMap(t.Context(), "ns", "cm"); !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, err := client.CoreV1().ConfigMaps("ns").Create(t.Context(), configMap("cm", "1", "a"),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if cm, err := s.ConfigMap(t.Context(), "ns", "cm"); err != nil || cm.Data["k"] != "a" || notified != 1 {
			t.Errorf("%v %v, told %d times", cm, err, notified)
		}
		stop(t, s)
	})
}

func stop(t *testing.T, s *Store) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Run(ctx); err != nil {
		t.Error(err)
	}
}

// While the API fails, readers get its error, tries are spaced, and the first success is announced.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(configMap("cm", "1", "a"))
		down := true
		client.PrependReactor("*", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
			return down, nil, errors.New("down")
		})
		s := New(client)
		notified := 0
		s.Hold(podWith("u1", "cm"), func(types.UID) { notified++ })
		if _, err := s.ConfigMap(t.Context(), "ns", "cm"); err == nil || err.Error() != "down" {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if n := count(client, "list"); n < 5 || n > 12 {
			t.Errorf("%d tries in a minute", n)
		}
		down = false
		time.Sleep(lastRetry)
		synctest.Wait()
		if notified != 1 {
			t.Errorf("told %d times that the object can be read", notified)
		}
		stop(t, s)
	})
}

// An immutable object needs no watch.
func TestImmutable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cm := configMap("cm", "1", "a")
		cm.Immutable = new(bool)
		*cm.Immutable = true
		client := fake.NewClientset(cm)
		s := New(client)
		s.Hold(podWith("u1", "cm"), func(types.UID) {})
		synctest.Wait()
		if _, err := s.ConfigMap(t.Context(), "ns", "cm"); err != nil || count(client, "watch") != 0 ||
			count(client, "get") != 0 {
			t.Errorf("%v %v", err, client.Actions())
		}
		stop(t, s)
	})
}

// An immutable object that was deleted and made again is read again by the next pod, also soon after the last one, and
// while another one has it: this is how its content is changed. The other one is informed once it has changed.
func TestImmutableObjectIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := func(version, value string) *corev1.ConfigMap {
			cm := configMap("cm", version, value)
			cm.UID, cm.Immutable = types.UID(version), new(true)
			return cm
		}
		client := fake.NewClientset(made("1", "old"))
		s := New(client)
		defer stop(t, s)
		maps := client.CoreV1().ConfigMaps("ns")
		var informed []types.UID
		read := func(pod, want string) {
			t.Helper()
			s.Hold(podWith(pod, "cm"), func(uid types.UID) { informed = append(informed, uid) })
			if cm, err := s.ConfigMap(t.Context(), "ns", "cm"); err != nil || cm.Data["k"] != want {
				t.Errorf("pod %s reads %v, %v, not %s", pod, cm, err, want)
			}
			synctest.Wait()
		}
		again := func(version, value string) {
			t.Helper()
			if err := maps.Delete(t.Context(), "cm", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := maps.Create(t.Context(), made(version, value), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		read("u1", "old")
		s.Release("u1")
		again("2", "new")
		time.Sleep(linger / 2)
		read("u2", "new")
		time.Sleep(linger) // the first one is forgotten meanwhile
		read("u3", "new")
		if len(informed) > 0 {
			t.Errorf("informed although nothing has changed: %v", informed)
		}
		again("3", "newest")
		read("u4", "newest")
		if slices.Sort(informed); !slices.Equal(informed, []types.UID{"u2", "u3", "u4"}) {
			t.Errorf("informed: %v", informed)
		}
		for _, uid := range []types.UID{"u2", "u3", "u4"} {
			s.Release(uid)
		}
		time.Sleep(2 * linger)
		if len(s.held) > 0 || count(client, "watch") > 0 {
			t.Errorf("kept: %v, calls: %v", s.held, client.Actions())
		}
	})
}

// Services of the namespace and the API's own; not before they were read (L3.134).
func TestServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := func(ns, name string) *corev1.Service {
			return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
		}
		client := fake.NewClientset(service("default", "kubernetes"), service("default", "x"), service("ns", "a"))
		s := New(client)
		if _, err := s.Services(t.Context(), "ns"); err == nil ||
			err.Error() != "services have not yet been read at least once, cannot construct envvars" {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		synctest.Wait()
		if err := client.CoreV1().Services("ns").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := client.CoreV1().Services("ns").Create(t.Context(), service("ns", "b"),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		list, err := s.Services(t.Context(), "ns")
		if err != nil || len(list) != 2 || list[0].Name != "b" || list[1].Name != "kubernetes" {
			t.Errorf("%v %v", list, err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
