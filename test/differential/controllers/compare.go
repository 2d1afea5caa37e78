package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// kinds are what is compared after each step.
var kinds = []schema.GroupVersionResource{
	{Version: "v1", Resource: "pods"}, {Version: "v1", Resource: "replicationcontrollers"},
	{Version: "v1", Resource: "endpoints"}, {Version: "v1", Resource: "persistentvolumeclaims"},
	{Group: "apps", Version: "v1", Resource: "deployments"}, {Group: "apps", Version: "v1", Resource: "replicasets"},
	{Group: "apps", Version: "v1", Resource: "statefulsets"}, {Group: "apps", Version: "v1", Resource: "daemonsets"},
	{Group: "apps", Version: "v1", Resource: "controllerrevisions"},
	{Group: "batch", Version: "v1", Resource: "jobs"}, {Group: "batch", Version: "v1", Resource: "cronjobs"},
	{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"},
	{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"},
	{Group: "autoscaling", Version: "v2", Resource: "horizontalpodautoscalers"},
}

// period is longer than that of autoscalers.
const period = 17 * time.Second

// compared is one history on both sides.
type compared struct {
	sides     [2]*side
	namespace string
	seed      uint64
	limit     time.Duration
	verbose   bool
	began     time.Time
}

// play reports whether there was a difference, which it prints. The history ends with the first.
func (c *compared) play(ctx context.Context, steps []step) (different bool, err error) {
	for _, s := range c.sides {
		if _, err := s.client.CoreV1().Namespaces().Create(ctx,
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: c.namespace}}, metav1.CreateOptions{}); err != nil {
			return false, err
		}
		defer c.end(ctx, s)
	}
	for _, s := range c.sides {
		for i := range nodes { // as earlier histories do not leave them
			if err := setTaint(ctx, s.client, nodeName(i), false); err != nil {
				return false, err
			}
		}
		for !s.hasAccount(ctx, c.namespace) {
			select {
			case <-ctx.Done():
				return false, ctx.Err()
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	var done []string
	for i, x := range steps {
		done = append(done, fmt.Sprintf("%d. %s", i+1, x.name))
		if c.verbose {
			fmt.Printf("seed %d: %s\n", c.seed, done[i])
		}
		answers := [2]string{}
		for n, s := range c.sides {
			var err error
			if x.kubelet != nil {
				k, failed := newKubelet(ctx, s, c.namespace, c.began.Add(time.Duration(i)*time.Second))
				if failed != nil {
					return false, failed
				}
				err = x.kubelet(k)
			} else {
				err = x.do(ctx, s.client, c.namespace)
			}
			if answers[n] = "ok"; err != nil {
				answers[n] = plain(err.Error())
			}
		}
		if x.period {
			select {
			case <-ctx.Done():
				return false, ctx.Err()
			case <-time.After(period):
			}
		}
		diff, err := c.settle(ctx, c.objects)
		if err != nil {
			return false, err
		}
		if answers[0] != answers[1] {
			diff = append([]string{"answers: " + answers[0] + "\nand      " + answers[1]}, diff...)
		}
		if len(diff) > 0 {
			c.report(done, diff)
			return true, nil
		}
	}
	diff, err := c.settle(ctx, c.events)
	if len(diff) > 0 {
		c.report(done, diff)
	}
	return len(diff) > 0, err
}

// end deletes the namespace, and its pods as kubelets do, until it is gone: what is left slows later histories.
func (c *compared) end(ctx context.Context, s *side) {
	namespaces := s.client.CoreV1().Namespaces()
	_ = namespaces.Delete(context.WithoutCancel(ctx), c.namespace, metav1.DeleteOptions{})
	for end := time.Now().Add(c.limit); time.Now().Before(end); {
		if _, err := namespaces.Get(ctx, c.namespace, metav1.GetOptions{}); err != nil {
			return
		}
		if k, err := newKubelet(ctx, s, c.namespace, c.began); err == nil {
			_ = k.reap() // what fails is tried again
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (c *compared) report(done, diff []string) {
	fmt.Printf("== seed %d\n%s\n-- carob (-), upstream (+)\n%s\n", c.seed, strings.Join(done, "\n"),
		strings.Join(diff, "\n"))
}

// settle waits until both sides look the same, twice in a row; it returns how they differ at the end of the limit.
func (c *compared) settle(ctx context.Context, look func(ctx context.Context, s *side) (map[string]string, error),
) ([]string, error) {
	same := 0
	for end := time.Now().Add(c.limit); ; {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
		a, err := look(ctx, c.sides[0])
		if err != nil {
			return nil, err
		}
		b, err := look(ctx, c.sides[1])
		if err != nil {
			return nil, err
		}
		if maps.Equal(a, b) {
			if same++; same == 2 {
				return nil, nil
			}
			continue
		}
		same = 0
		if time.Now().After(end) {
			return differences(a, b), nil
		}
	}
}

func differences(a, b map[string]string) []string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(a)) {
		if b[key] == "" {
			out = append(out, "- "+key+"\n"+a[key])
		} else if a[key] != b[key] {
			out = append(out, "! "+key+"\n"+lines(a[key], b[key]))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(b)) {
		if a[key] == "" {
			out = append(out, "+ "+key+"\n"+b[key])
		}
	}
	return out
}

// lines are those that only one of two texts has.
func lines(a, b string) string {
	var out []string
	for _, x := range []struct{ sign, these, those string }{{"-", a, b}, {"+", b, a}} {
		has := strings.Split(x.those, "\n")
		for l := range strings.SplitSeq(x.these, "\n") {
			if !slices.Contains(has, l) {
				out = append(out, x.sign+" "+l)
			}
		}
	}
	if len(out) == 0 { // as often, or in another order
		return a + "\nand\n" + b
	}
	return strings.Join(out, "\n")
}

// random are the ends of names that the API server makes.
var random = regexp.MustCompile(`-[bcdfghjklmnpqrstvwxz2456789]{5}\b`)

func plain(text string) string { return random.ReplaceAllString(text, "-*") }

// objects are those of a side without names, times and the like.
func (c *compared) objects(ctx context.Context, s *side) (map[string]string, error) {
	out := map[string]string{}
	for _, gvr := range kinds {
		list, err := s.dynamic.Resource(gvr).Namespace(c.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		var texts []string
		for i := range list.Items {
			text, err := describe(&list.Items[i])
			if err != nil {
				return nil, err
			}
			texts = append(texts, text)
		}
		slices.Sort(texts)
		if gvr.Resource == "poddisruptionbudgets" && deleting(out) {
			continue
		}
		for i, text := range texts {
			var head struct{ Metadata struct{ Name string } }
			if err := json.Unmarshal([]byte(text), &head); err != nil {
				return nil, err
			}
			key := gvr.Resource + "/" + head.Metadata.Name
			for n := 2; out[key] != ""; n++ {
				key = fmt.Sprintf("%s/%s (%d)", gvr.Resource, head.Metadata.Name, n)
			}
			out[key] = texts[i]
		}
	}
	return out, nil
}

// steps of scaling: a controller that looks later sees more of what has changed, and scales in one step, not in two.
var scaled = regexp.MustCompile(`(Scaled (?:up|down) replica set \S+) from \d+ to \d+`)

// deleting reports whether a pod is being deleted. If its controller is gone, upstream's budgets fail until it is, too
// (docs/differences.md).
func deleting(objects map[string]string) bool {
	for key, text := range objects {
		if strings.HasPrefix(key, "pods/") && strings.Contains(text, `"deletionTimestamp"`) {
			return true
		}
	}
	return false
}

// events are the recorded events, each once: the number of tries depends on the clock.
func (c *compared) events(ctx context.Context, s *side) (map[string]string, error) {
	list, err := s.client.CoreV1().Events(c.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, e := range list.Items {
		// Of a Job that upstream's controller has just made; of budgets with pods whose controller is gone
		// (docs/differences.md for both).
		// (An autoscaler that goes while upstream's controller looks at it has a status that can't be stored.)
		if e.Reason == "UnexpectedJob" || e.Reason == "FailedUpdateStatus" || e.InvolvedObject.Kind == "PodDisruptionBudget" {
			continue
		}
		// Upstream updates claims as its cache shows them, which may be old; carob reads them. Which of more than ten
		// similar events is the last one, is chance.
		if strings.Contains(e.Message, "the object has been modified") ||
			strings.HasPrefix(e.Message, "(combined from similar events)") {
			continue
		}
		o := e.InvolvedObject
		out[plain(fmt.Sprintf("event %s/%s from %s: %s %s %s", o.Kind, o.Name, e.Source.Component, e.Type, e.Reason,
			scaled.ReplaceAllString(e.Message, "$1")))] = "told"
	}
	return out, nil
}

// describe writes an object as JSON, without what depends on chance and time.
func describe(o *unstructured.Unstructured) (string, error) {
	all, ok := scrub("", o.Object).(map[string]any)
	if !ok {
		return "", fmt.Errorf("%s is not an object", o.GetName())
	}
	meta, _ := all["metadata"].(map[string]any)
	for _, key := range []string{"uid", "resourceVersion", "managedFields", "generation", "creationTimestamp",
		"generateName"} {
		delete(meta, key)
	}
	if notes, ok := meta["annotations"].(map[string]any); ok && len(notes) == 0 {
		delete(meta, "annotations")
	}
	if status, ok := all["status"].(map[string]any); ok {
		if seen, ok := status["observedGeneration"]; ok {
			status["observedGeneration"] = fmt.Sprint("current: ", fmt.Sprint(seen) == fmt.Sprint(o.GetGeneration()))
		}
		if list, ok := status["conditions"].([]any); ok {
			if o.GetKind() == "Deployment" {
				forget(list)
			}
			slices.SortFunc(list, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		}
	}
	var shorter bytes.Buffer
	e := json.NewEncoder(&shorter)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	err := e.Encode(all)
	return shorter.String(), err
}

// forget drops why a rollout progresses: the reason is that of the last step that a controller has seen, and a fast
// controller sees fewer of them.
func forget(conditions []any) {
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == "Progressing" && c["status"] == "True" {
			delete(c, "reason")
			delete(c, "message")
		}
	}
}

// dropped are fields that identify one of several equal pods, or contain times.
var dropped = map[string]bool{"uid": true, "nodeName": true, "podIP": true, "podIPs": true, "hostIP": true,
	"hostIPs": true, "resourceVersion": true, "controller-uid": true, "batch.kubernetes.io/controller-uid": true,
	"clusterIP": true, "clusterIPs": true, "batch.kubernetes.io/cronjob-scheduled-timestamp": true,
	"currentAverageUtilization": true,
	// Only there when the last pass of the controller was the first to see a change of Ready.
	"endpoints.kubernetes.io/last-change-trigger-time": true}

// scrub copies a value without those fields, and with plain names; times are only there or not.
func scrub(field string, value any) any {
	switch v := value.(type) {
	case map[string]any:
		out := map[string]any{}
		for key, x := range v {
			if !dropped[key] {
				out[key] = scrub(key, x)
			}
		}
		return out
	case []any:
		var out []any
		for _, x := range v {
			out = append(out, scrub(field, x))
		}
		if field == "endpoints" || field == "addresses" || field == "notReadyAddresses" || field == "active" {
			slices.SortFunc(out, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		}
		return out
	case string:
		if strings.HasSuffix(field, "Time") || strings.HasSuffix(strings.ToLower(field), "timestamp") ||
			strings.HasSuffix(field, "-time") || strings.HasSuffix(field, "At") {
			return "a time"
		}
		return plain(v)
	}
	return value
}
