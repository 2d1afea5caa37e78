package node

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"carob/internal/node/refs"
)

// A container whose variables need an object that does not exist says so, and starts when the object comes, without a
// wait: late, a second time after it came without the key, or in a second place. It may never come; then the pod is
// deleted as any other. Optional objects are not waited for, and other containers do not wait.
func TestMissingObjectsOfVariables(t *testing.T) {
	const at = 10 * time.Millisecond // an owner's alarms are rounded up to it
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		client := fake.NewClientset()
		store := refs.New(client)
		w.objects = store
		ctx, end := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer end()
		running.Go(func() { _ = store.Run(ctx) })
		w.start()
		defer w.stop()

		pod := webPod("a")
		env := func(optional *bool) corev1.EnvVar {
			key := &corev1.ConfigMapKeySelector{Key: "k", Optional: optional}
			key.Name = "late"
			return corev1.EnvVar{Name: "V", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: key}}
		}
		needy, modest, plain := pod.Spec.Containers[0], pod.Spec.Containers[0], pod.Spec.Containers[0]
		needy.Name, modest.Name, plain.Name = "needy", "modest", "plain"
		needy.Env = []corev1.EnvVar{env(nil)}
		needy.EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "later"}}}}
		modest.Env = []corev1.EnvVar{env(new(true))}
		pod.Spec.Containers = []corev1.Container{needy, modest, plain}
		w.api.put(pod)
		never := webPod("b")
		never.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "never"}}}}
		w.api.put(never)

		waits := func(after time.Duration, message string) {
			t.Helper()
			settle(after)
			v, _ := w.pods.Get("default", "a")
			st := v.Status.ContainerStatuses
			if len(st) != 3 || st[0].State.Running == nil || st[2].State.Running == nil {
				t.Fatalf("others do not run: %v", st)
			}
			if wait := st[1].State.Waiting; wait == nil || wait.Reason != "CreateContainerConfigError" ||
				wait.Message != message {
				t.Fatalf("it does not wait for %s: %v", message, st[1].State)
			}
		}
		configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "late"}}
		configMaps := client.CoreV1().ConfigMaps("default")
		create := func(labels map[string]string, data map[string]string) {
			t.Helper()
			cm := configMap.DeepCopy()
			cm.Labels, cm.Data = labels, data
			if _, err := configMaps.Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}

		waits(time.Second, `secret "later" not found`)
		waits(time.Minute+2*time.Second, `secret "later" not found`)
		if _, err := client.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "later"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		waits(at, `configmap "late" not found`)
		settle(time.Second)
		create(nil, nil)
		waits(at, "couldn't find key k in ConfigMap default/late")
		settle(time.Second)
		if err := configMaps.Delete(t.Context(), "late", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		waits(at, `configmap "late" not found`)
		settle(time.Second)
		create(nil, map[string]string{"k": "v"})
		settle(at)
		if v, _ := w.pods.Get("default", "a"); v.Status.ContainerStatuses[1].State.Running == nil {
			t.Errorf("it does not run when all is there: %v", v.Status.ContainerStatuses)
		}

		settle(time.Hour)
		w.mustBe("a", corev1.PodRunning)
		w.mustBe("b", corev1.PodPending)
		w.deleteGracefully("b", 30)
		settle(time.Second)
		if w.api.get("b") != nil {
			t.Errorf("pod b is still there; waits %v", w.waits("uid-b"))
		}
	})
}
