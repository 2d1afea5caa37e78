package refs

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"carob/internal/node/spec"
)

// A container hears of the object that it awaits, and of no other; of the next one when it awaits that, and of none
// when it has what it needs or its pod has ended. The volumes of its pod have the same object independently.
func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		s := New(client)
		defer stop(t, s)
		volumes, variables := 0, 0
		pod := podWith("u1", "a")
		s.Hold(pod, func(types.UID) { volumes++ })
		await := func(m spec.Missing) { s.Await(pod, "c", m, func(types.UID) { variables++ }) }
		create := func(name string) {
			t.Helper()
			if _, err := client.CoreV1().ConfigMaps("ns").Create(t.Context(), configMap(name, "1", "v"),
				metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		expect := func(what string, wantVolumes, wantVariables int) {
			t.Helper()
			synctest.Wait()
			if volumes != wantVolumes || variables != wantVariables {
				t.Errorf("%s: %d, %d calls, want %d, %d", what, volumes, variables, wantVolumes, wantVariables)
			}
		}
		if _, err := s.ConfigMap(t.Context(), "ns", "a"); !apierrors.IsNotFound(err) {
			t.Error(err)
		}
		await(spec.Missing{Secret: true, Name: "a"})
		if _, err := s.Secret(t.Context(), "ns", "a"); !apierrors.IsNotFound(err) {
			t.Error(err)
		}
		create("a")
		expect("a config map", 1, 0)
		if _, err := client.CoreV1().Secrets("ns").Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		expect("the secret", 1, 1)
		for range 3 {
			await(spec.Missing{Name: "b"})
		}
		if _, err := s.ConfigMap(t.Context(), "ns", "b"); !apierrors.IsNotFound(err) {
			t.Error(err)
		}
		create("b")
		expect("the next object", 1, 2)
		s.Arrived("u1", "c")
		s.Arrived("u1", "unknown")
		update := func() {
			t.Helper()
			for _, name := range []string{"a", "b"} {
				if _, err := client.CoreV1().ConfigMaps("ns").Update(t.Context(), configMap(name, "2", "w"),
					metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
		}
		update()
		expect("nothing is awaited", 2, 2)
		await(spec.Missing{Name: "b"})
		s.Release("u1")
		update()
		expect("the pod has ended", 2, 2)
		time.Sleep(2 * linger)
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.held)+len(s.pods) != 0 {
			t.Errorf("left: %v, %v", s.held, s.pods)
		}
	})
}

// An immutable object without the key is not watched any more. Each call reads it again: another may have its name.
func TestAwaitImmutable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := configMap("a", "1", "v")
		first.Immutable = new(true)
		client := fake.NewClientset(first)
		s := New(client)
		defer stop(t, s)
		pod, calls := podWith("u1"), 0
		await := func() {
			s.Await(pod, "c", spec.Missing{Name: "a"}, func(types.UID) { calls++ })
			synctest.Wait()
		}
		await()
		if err := client.CoreV1().ConfigMaps("ns").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		await()
		if _, err := s.ConfigMap(t.Context(), "ns", "a"); !apierrors.IsNotFound(err) || calls != 1 {
			t.Errorf("%v, %d calls", err, calls)
		}
		second := configMap("a", "3", "w")
		if _, err := client.CoreV1().ConfigMaps("ns").Create(t.Context(), second, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if cm, err := s.ConfigMap(t.Context(), "ns", "a"); err != nil || cm.Data["k"] != "w" || calls != 2 {
			t.Errorf("%v, %v, %d calls", cm, err, calls)
		}
	})
}
