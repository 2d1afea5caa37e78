package allocation

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func list(cpu, memory string) corev1.ResourceList {
	l := corev1.ResourceList{}
	if cpu != "" {
		l[corev1.ResourceCPU] = resource.MustParse(cpu)
	}
	if memory != "" {
		l[corev1.ResourceMemory] = resource.MustParse(memory)
	}
	if len(l) == 0 {
		return nil
	}
	return l
}

// The resources in the runtime are reported, unless they differ only by rounding (L3.127, L4.32b).
func TestResourcesInForce(t *testing.T) {
	for _, test := range []struct {
		name                    string
		allocated, actual, want corev1.ResourceRequirements
	}{
		{"nothing asked, least shares",
			corev1.ResourceRequirements{},
			corev1.ResourceRequirements{Requests: list("2m", "")},
			corev1.ResourceRequirements{}},
		{"rounded",
			corev1.ResourceRequirements{Requests: list("101m", "64Mi"), Limits: list("5m", "1Gi")},
			corev1.ResourceRequirements{Requests: list("100m", ""), Limits: list("10m", "1Gi")},
			corev1.ResourceRequirements{Requests: list("101m", "64Mi"), Limits: list("5m", "1Gi")}},
		{"not resized yet",
			corev1.ResourceRequirements{Requests: list("500m", "64Mi"), Limits: list("1", "1Gi")},
			corev1.ResourceRequirements{Requests: list("100m", ""), Limits: list("200m", "512Mi")},
			corev1.ResourceRequirements{Requests: list("100m", "64Mi"), Limits: list("200m", "512Mi")}},
		{"a limit that is not in force",
			corev1.ResourceRequirements{Limits: list("1", "1Gi")},
			corev1.ResourceRequirements{Requests: list("2m", "")},
			corev1.ResourceRequirements{Limits: corev1.ResourceList{}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := test.allocated.DeepCopy()
			got := InForce(&test.allocated, &test.actual)
			if diff := cmp.Diff(&test.want, got); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(before, &test.allocated); diff != "" {
				t.Errorf("the spec was changed: %s", diff)
			}
		})
	}
}

// L4.32a: a running pod shows the cpu request that its cgroup stands for. On cgroup v1 that is the
// request, on v2 weights are coarser; the pod-level request stays when it gives the same weight,
// and values close to zero are not shown.
func TestWholePodInForce(t *testing.T) {
	cpu := func(c string) corev1.ResourceList {
		if c == "" {
			return nil
		}
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(c)}
	}
	for _, test := range []struct{ container, pod, overhead, v1, v2 string }{
		{"100m", "", "", "100m", "79m"},
		{"101m", "", "", "101m", "79m"},
		{"1", "", "", "1", "975m"},
		{"2m", "", "", "", ""},
		{"1m", "", "", "", ""},
		{"3m", "", "", "3m", ""},
		{"", "", "", "", ""},
		{"100m", "100m", "", "100m", "100m"},
		{"1", "2", "", "2", "2"},
		{"100m", "100m", "100m", "200m", "181m"},
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}},
			Overhead: cpu(test.overhead)}}
		p.Spec.Containers[0].Resources.Requests = cpu(test.container)
		if test.pod != "" {
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: cpu(test.pod)}
		}
		for v2, want := range map[bool]string{false: test.v1, true: test.v2} {
			got := ""
			if r := StatusOf(p, v2).Running; r != nil {
				if q, ok := r.Requests[corev1.ResourceCPU]; ok {
					got = q.String()
				}
			}
			if got != want {
				t.Errorf("%+v, v2 %v: %q, want %q", test, v2, got, want)
			}
		}
	}
}

// A node that enforces no CPU limits: the wanted limit counts as reached and is shown; memory and requests are those
// that the runtime reports (S11.56).
func TestWithoutQuota(t *testing.T) {
	want := &corev1.ResourceRequirements{Requests: list("500m", "64Mi"), Limits: list("1", "1Gi")}
	for _, c := range []struct {
		actual  corev1.ResourceRequirements
		reached bool
	}{
		{corev1.ResourceRequirements{Requests: list("500m", ""), Limits: list("", "1Gi")}, true},
		{corev1.ResourceRequirements{Requests: list("500m", ""), Limits: list("250m", "1Gi")}, true}, // of before
		{corev1.ResourceRequirements{Requests: list("500m", ""), Limits: list("", "2Gi")}, false},
		{corev1.ResourceRequirements{Requests: list("200m", ""), Limits: list("", "1Gi")}, false},
	} {
		before := c.actual.DeepCopy()
		actual := WithoutQuota(want, &c.actual)
		if got := Reached(want, actual); got != c.reached {
			t.Errorf("%v: reached %v", c.actual, got)
		}
		if limit := InForce(want, actual).Limits.Cpu(); limit.Value() != 1 {
			t.Errorf("%v: shows the limit %v", c.actual, limit)
		}
		if diff := cmp.Diff(before, &c.actual); diff != "" {
			t.Errorf("the report was changed: %s", diff)
		}
	}
	free := &corev1.ResourceRequirements{Requests: list("500m", "")}
	if r := WithoutQuota(free, &corev1.ResourceRequirements{Limits: list("1", "")}); len(r.Limits) > 0 {
		t.Errorf("a container without a limit shows %v", r.Limits)
	}
}
