package stream

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// some are pods that a server shows.
type some struct {
	Pods // calls that no test makes panic
	list []*corev1.Pod
}

func (s some) List() []*corev1.Pod { return s.list }

// Of pods with running containers, /runningpods has names and images, and nothing else (S12.8).
func TestRunningPods(t *testing.T) {
	status := func(name string, running bool) corev1.ContainerStatus {
		s := corev1.ContainerStatus{Name: name, Image: "image-" + name}
		if running {
			s.State.Running = &corev1.ContainerStateRunning{}
		}
		return s
	}
	pods := some{list: []*corev1.Pod{
		{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "u1", Labels: map[string]string{"a": "b"}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Env: []corev1.EnvVar{{Name: "SECRET"}}}}},
			Status: corev1.PodStatus{
				InitContainerStatuses:      []corev1.ContainerStatus{status("init", false), status("sidecar", true)},
				ContainerStatuses:          []corev1.ContainerStatus{status("c", true), status("ended", false)},
				EphemeralContainerStatuses: []corev1.ContainerStatus{status("debug", true)}}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "waits", UID: "u2"}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "ended", UID: "u3"},
			Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{status("c", false)}}},
	}}
	code, body := requested(&Server{cfg: Config{Pods: pods}}, "/runningpods/")
	var list corev1.PodList
	if err := json.Unmarshal([]byte(body), &list); err != nil || code != http.StatusOK || len(list.Items) != 1 {
		t.Fatalf("%d %v %s", code, err, body)
	}
	var images []string
	for _, c := range list.Items[0].Spec.Containers {
		images = append(images, c.Name+"="+c.Image)
	}
	if p := list.Items[0]; p.Name != "web" || p.Namespace != "ns" || p.UID != "u1" ||
		strings.Join(images, " ") != "sidecar=image-sidecar c=image-c debug=image-debug" {
		t.Errorf("%s", body)
	}
	if strings.Contains(body, "SECRET") || strings.Contains(body, `"labels"`) {
		t.Errorf("more than names and images: %s", body)
	}
	_, body = requested(&Server{cfg: Config{Pods: some{}}}, "/runningpods/")
	if !strings.Contains(body, `"items":[]`) {
		t.Errorf("none: %s", body)
	}
}

// /statusz shows the component, its version, and its start time.
func TestStatusz(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Server{cfg: Config{Version: "v1.37.2"}, started: time.Now()}
		time.Sleep(90*time.Minute + 300*time.Millisecond)
		code, body := requested(s, "/statusz")
		for _, want := range []string{"kubelet statusz\n", "Up: 1h30m0s\n", "Binary version: v1.37.2\n",
			"Started: Sat, 01 Jan 2000 00:00:00 UTC\n"} {
			if code != http.StatusOK || !strings.Contains(body, want) {
				t.Errorf("%d %s, want %q", code, body, want)
			}
		}
	})
}
