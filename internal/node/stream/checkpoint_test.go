package stream

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// onePod is a pod whose container c runs.
type onePod struct {
	Pods
	pod *corev1.Pod
}

func (o onePod) Pod(namespace, name string) *corev1.Pod {
	if namespace != o.pod.Namespace || name != o.pod.Name {
		return nil
	}
	return o.pod
}

func (o onePod) ContainerID(_ types.UID, container string) string {
	if container == "c" {
		return "id-c"
	}
	return ""
}

// checkpoints is a runtime that records requests.
type checkpoints struct {
	Runtime
	got  *cri.CheckpointContainerRequest
	fail error
}

func (c *checkpoints) CheckpointContainer(_ context.Context, req *cri.CheckpointContainerRequest) (
	*cri.CheckpointContainerResponse, error) {
	c.got = req
	return &cri.CheckpointContainerResponse{}, c.fail
}

// The runtime writes a checkpoint to a path of the agent, with the time limit of the client. A runtime without
// checkpoints, and containers that do not run or exist, have an error of their own.
func TestCheckpoint(t *testing.T) {
	root := t.TempDir()
	pods := onePod{pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"},
		Spec: corev1.PodSpec{InitContainers: []corev1.Container{{Name: "init"}},
			Containers: []corev1.Container{{Name: "c"}},
			EphemeralContainers: []corev1.EphemeralContainer{
				{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}}}}}}
	able := &checkpoints{}
	post := func(runtime Runtime, path string) (int, string) {
		s := &Server{cfg: Config{Pods: pods, Runtime: runtime, Root: root}}
		w := httptest.NewRecorder()
		s.routes().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, nil))
		return w.Code, w.Body.String()
	}
	code, body := post(able, "/checkpoint/ns/web/c?timeout=7&timeout=9")
	var answer struct {
		Items []string `json:"items"`
	}
	if err := json.Unmarshal([]byte(body), &answer); code != http.StatusOK || err != nil || len(answer.Items) != 1 ||
		!strings.HasPrefix(answer.Items[0], filepath.Join(root, "checkpoints", "checkpoint-web_ns-c-")) ||
		!strings.HasSuffix(answer.Items[0], ".tar") {
		t.Errorf("%d %s", code, body)
	}
	if able.got.GetTimeout() != 9 || able.got.GetContainerId() != "id-c" || able.got.GetLocation() != answer.Items[0] {
		t.Errorf("request: %v", able.got)
	}
	for _, test := range []struct {
		runtime Runtime
		path    string
		code    int
		want    string
	}{
		{able, "/checkpoint/ns/none/c", http.StatusNotFound, "pod does not exist"},
		{able, "/checkpoint/ns/web/none", http.StatusNotFound, "container none does not exist"},
		{able, "/checkpoint/ns/web/..%2fc", http.StatusNotFound, "container ../c does not exist"},
		{able, "/checkpoint/ns/web/c?timeout=x", http.StatusNotFound, "cannot parse value of timeout parameter"},
		{able, "/checkpoint/ns/web/c?timeout=-1", http.StatusInternalServerError, "timeout value to be > 0"},
		{able, "/checkpoint/ns/web/init", http.StatusInternalServerError, "container init not found"},
		{able, "/checkpoint/ns/web/debug", http.StatusInternalServerError, "container debug not found"},
		{&checkpoints{fail: errors.New("no CRIU")}, "/checkpoint/ns/web/c", http.StatusInternalServerError,
			"checkpointing of ns/web/c failed (no CRIU)"},
		{struct{ Runtime }{}, "/checkpoint/ns/web/c", http.StatusInternalServerError, "cannot checkpoint containers"},
	} {
		if code, body := post(test.runtime, test.path); code != test.code || !strings.Contains(body, test.want) {
			t.Errorf("%s: %d %s, want %d %s", test.path, code, body, test.code, test.want)
		}
	}
}
