package vpa

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"carob/internal/controllers/inventory"
	"carob/internal/core/workload/vpa"
)

// restAPI reads and writes through the API: the add-on's objects, metrics, and scales. It uses
// JSON, which all these servers support.
type restAPI struct{ client kubernetes.Interface }

const root = "/apis/" + vpa.Group + "/" + vpa.Version

func (r restAPI) read(ctx context.Context, into any, segments ...string) error {
	return decode(ctx, r.client.CoreV1().RESTClient().Get().AbsPath(segments...), into)
}

// decode sends a request and reads the answer.
func decode(ctx context.Context, q *rest.Request, into any) error {
	text, err := q.SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("read %s: %w", q.URL().Path, err)
	}
	return nil
}

func (r restAPI) write(ctx context.Context, verb string, kind types.PatchType, what any, segments ...string) error {
	text, err := json.Marshal(what)
	if err != nil {
		return fmt.Errorf("write %s: %w", strings.Join(segments, "/"), err)
	}
	_, err = r.client.CoreV1().RESTClient().Verb(verb).AbsPath(segments...).SetHeader("Accept", "application/json").
		SetHeader("Content-Type", string(kind)).Body(text).DoRaw(ctx)
	return err
}

type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// status stores a status (W9.36).
func (r restAPI) status(ctx context.Context, name vpa.Name, s *vpa.Status) error {
	return r.write(ctx, "PATCH", types.JSONPatchType, []operation{{"add", "/status", s}}, root, "namespaces",
		name.Namespace, "verticalpodautoscalers", name.Name, "status")
}

// checkpoints reads the checkpoints of all namespaces. The schema allows anything as weights: of a checkpoint that
// cannot be read, only the names are returned. It then has no version, and is not used.
func (r restAPI) checkpoints(ctx context.Context) ([]vpa.Checkpoint, error) {
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := r.read(ctx, &list, root, "verticalpodautoscalercheckpoints"); err != nil {
		return nil, err
	}
	out := make([]vpa.Checkpoint, 0, len(list.Items))
	for _, text := range list.Items {
		var c vpa.Checkpoint
		if err := json.Unmarshal(text, &c); err != nil {
			var named struct {
				metav1.ObjectMeta `json:"metadata"`
				Spec              vpa.CheckpointSpec `json:"spec"`
			}
			if err := json.Unmarshal(text, &named); err != nil {
				continue
			}
			c = vpa.Checkpoint{ObjectMeta: named.ObjectMeta, Spec: named.Spec}
		}
		out = append(out, c)
	}
	return out, nil
}

// save updates a checkpoint, or creates it.
func (r restAPI) save(ctx context.Context, c *vpa.Checkpoint) error {
	annotations := c.Annotations
	if annotations == nil {
		annotations = map[string]string{}
	}
	at := []string{root, "namespaces", c.Namespace, "verticalpodautoscalercheckpoints"}
	err := r.write(ctx, "PATCH", types.JSONPatchType, []operation{{"add", "/metadata/annotations", annotations},
		{"add", "/spec", c.Spec}, {"add", "/status", c.Status}}, append(at, c.Name)...)
	if apierrors.IsNotFound(err) {
		err = r.write(ctx, "POST", "application/json", c, at...)
	}
	return err
}

func (r restAPI) remove(ctx context.Context, c *vpa.Checkpoint) error {
	return r.client.CoreV1().RESTClient().Delete().AbsPath(root, "namespaces", c.Namespace,
		"verticalpodautoscalercheckpoints", c.Name).Do(ctx).Error()
}

// usage reads the usage of the containers of a namespace from metrics.k8s.io (W8.3).
func (r restAPI) usage(ctx context.Context, namespace string) ([]vpa.Sample, error) {
	var list metricsv1beta1.PodMetricsList
	err := r.read(ctx, &list, "/apis/metrics.k8s.io/v1beta1/namespaces", namespace, "pods")
	if err != nil {
		return nil, fmt.Errorf("unable to fetch metrics from resource metrics API: %w", err)
	}
	var out []vpa.Sample
	for i := range list.Items {
		for j := range list.Items[i].Containers {
			m, c := &list.Items[i], &list.Items[i].Containers[j]
			out = append(out, vpa.Sample{Pod: vpa.Name{Namespace: namespace, Name: m.Name}, Container: c.Name,
				At: m.Timestamp.Time, CPU: c.Usage.Cpu().MilliValue(), Memory: c.Usage.Memory().Value()})
		}
	}
	return out, nil
}

func (r restAPI) get(ctx context.Context, kind inventory.Kind, namespace, name string) (*autoscalingv1.Scale, error) {
	var s autoscalingv1.Scale
	err := decode(ctx, kind.Request(r.client.CoreV1().RESTClient().Get(), namespace, name, "scale"), &s)
	return &s, err
}
