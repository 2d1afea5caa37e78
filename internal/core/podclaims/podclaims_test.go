package podclaims

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

func pod(entries ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "p-uid"}}
	for _, e := range entries {
		name, from, _ := strings.Cut(e, "=")
		entry := corev1.PodResourceClaim{Name: name}
		if t, ok := strings.CutPrefix(from, "template:"); ok {
			entry.ResourceClaimTemplateName = &t
		} else {
			entry.ResourceClaimName = &from
		}
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, entry)
	}
	return p
}

func claim(name string, change func(*resourcev1.ResourceClaim)) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	if change != nil {
		change(c)
	}
	return c
}

func of(uid, entry string) func(*resourcev1.ResourceClaim) {
	return func(c *resourcev1.ResourceClaim) {
		c.Annotations = map[string]string{resourcev1.PodResourceClaimAnnotation: entry}
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: types.UID(uid),
			Controller: new(true)}}
	}
}

// show writes a plan in a line.
func show(p Plan) string {
	var parts []string
	for _, n := range p.Create {
		parts = append(parts, "create "+n.Entry+" as "+n.Claim.GenerateName)
	}
	for _, e := range slices.Sorted(maps.Keys(p.Found)) {
		parts = append(parts, "found "+e+" in "+p.Found[e])
	}
	for _, c := range p.Reserve {
		parts = append(parts, "reserve "+c.Name)
	}
	if p.Err != nil {
		parts = append(parts, fmt.Sprintf("%s fails: %v", p.Failed, p.Err))
	}
	return strings.Join(parts, ", ")
}

func TestForPod(t *testing.T) { // S9.10 to S9.14
	status := func(p *corev1.Pod, entry string, claim *string) *corev1.Pod {
		p.Status.ResourceClaimStatuses = append(p.Status.ResourceClaimStatuses,
			corev1.PodResourceClaimStatus{Name: entry, ResourceClaimName: claim})
		return p
	}
	on := func(p *corev1.Pod) *corev1.Pod { p.Spec.NodeName = "n"; return p }
	allocated := func(c *resourcev1.ResourceClaim) { c.Status.Allocation = &resourcev1.AllocationResult{} }
	full := func(c *resourcev1.ResourceClaim) {
		allocated(c)
		for i := range resourcev1.ResourceClaimReservedForMaxSize {
			c.Status.ReservedFor = append(c.Status.ReservedFor,
				resourcev1.ResourceClaimConsumerReference{Resource: "pods", UID: types.UID(fmt.Sprint(i))})
		}
	}
	mine := func(c *resourcev1.ResourceClaim) {
		allocated(c)
		c.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{Reservation(pod())}
	}
	for name, test := range map[string]struct {
		pod    *corev1.Pod
		claims []*resourcev1.ResourceClaim
		want   string
	}{
		"from a template":     {pod("gpu=template:t"), nil, "create gpu as p-gpu-"},
		"two of one template": {pod("a=template:t", "b=template:t"), nil, "create a as p-a-, create b as p-b-"},
		"no template":         {pod("gpu=template:x"), nil, `gpu fails: resource claim template "x": resourceclaimtemplate.resource.k8s.io "x" not found`},
		"the user's":          {pod("gpu=c"), nil, ""},
		"found": {pod("gpu=template:t"),
			[]*resourcev1.ResourceClaim{claim("p-gpu-1", of("p-uid", "gpu"))}, "found gpu in p-gpu-1"},
		"of the pod before it": {pod("gpu=template:t"),
			[]*resourcev1.ResourceClaim{claim("p-gpu-1", of("old", "gpu"))}, "create gpu as p-gpu-"},
		"of another entry": {pod("gpu=template:t"),
			[]*resourcev1.ResourceClaim{claim("p-x-1", of("p-uid", "x"))}, "create gpu as p-gpu-"},
		"told and there": {status(pod("gpu=template:t"), "gpu", new("c")),
			[]*resourcev1.ResourceClaim{claim("c", of("p-uid", "gpu"))}, ""},
		"told and gone": {status(pod("gpu=template:t"), "gpu", new("c")), nil, "create gpu as p-gpu-"},
		"told and somebody else's": {status(pod("gpu=template:t"), "gpu", new("c")),
			[]*resourcev1.ResourceClaim{claim("c", of("old", "gpu"))}, "create gpu as p-gpu-"},
		"none needed":      {status(pod("gpu=template:t"), "gpu", nil), nil, ""},
		"bound directly":   {on(pod("gpu=c")), []*resourcev1.ResourceClaim{claim("c", allocated)}, "reserve c"},
		"not bound":        {pod("gpu=c"), []*resourcev1.ResourceClaim{claim("c", allocated)}, ""},
		"not allocated":    {on(pod("gpu=c")), []*resourcev1.ResourceClaim{claim("c", nil)}, ""},
		"reserved already": {on(pod("gpu=c")), []*resourcev1.ResourceClaim{claim("c", mine)}, ""},
		"nobody fits in":   {on(pod("gpu=c")), []*resourcev1.ResourceClaim{claim("c", full)}, ""},
	} {
		in := Input{Pod: test.pod, Claims: map[string]*resourcev1.ResourceClaim{},
			Templates: map[string]*resourcev1.ResourceClaimTemplate{"t": {}}}
		for _, c := range test.claims {
			in.Claims[c.Name] = c
		}
		if got := show(ForPod(in)); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
		now := metav1.Now()
		in.Pod.DeletionTimestamp = &now
		if got := show(ForPod(in)); got != "" {
			t.Errorf("%s, while it is deleted: %s", name, got)
		}
		in.Pod.DeletionTimestamp, in.Pod.Status.Phase = nil, corev1.PodFailed
		if got := show(ForPod(in)); got != "" {
			t.Errorf("%s, after it failed: %s", name, got)
		}
	}
}

// A generated name is never too long and contains both parts; a template's metadata stays as it is.
func TestGeneratedClaim(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := pod(rapid.StringMatching(`[a-z]{1,63}`).Draw(t, "entry") + "=template:t")
		p.Name = rapid.StringMatching(`[a-z]{1,253}`).Draw(t, "pod")
		template := &resourcev1.ResourceClaimTemplate{}
		template.Spec.Labels, template.Spec.Annotations = map[string]string{"l": "1"}, map[string]string{"a": "1"}
		template.Spec.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "r"}}
		plan := ForPod(Input{Pod: p, Templates: map[string]*resourcev1.ResourceClaimTemplate{"t": template}})
		c := plan.Create[0].Claim
		entry := p.Spec.ResourceClaims[0].Name
		head, tail, _ := strings.Cut(c.GenerateName, "-")
		if len(c.GenerateName) > maxBase || !strings.HasPrefix(p.Name, head) ||
			!strings.HasPrefix(entry, strings.TrimSuffix(tail, "-")) {
			t.Fatalf("%q of %q and %q", c.GenerateName, p.Name, entry)
		}
		if !OwnedBy(p, c) || c.OwnerReferences[0].BlockOwnerDeletion != nil || c.Labels["l"] != "1" ||
			c.Annotations[resourcev1.PodResourceClaimAnnotation] != entry || len(c.Spec.Devices.Requests) != 1 ||
			len(template.Spec.Annotations) != 1 {
			t.Fatalf("%+v", c)
		}
	})
}

func TestForClaim(t *testing.T) { // S9.15, S9.16
	other := resourcev1.ResourceClaimConsumerReference{APIGroup: "example.com", Resource: "herds", Name: "h", UID: "x"}
	type ref = resourcev1.ResourceClaimConsumerReference
	reserved := func(allocated, finalizer, deleted bool, refs ...ref) func(*resourcev1.ResourceClaim) {
		return func(c *resourcev1.ResourceClaim) {
			c.Status.ReservedFor = refs
			if allocated {
				c.Status.Allocation = &resourcev1.AllocationResult{}
			}
			if finalizer {
				c.Finalizers = []string{"mine", resourcev1.Finalizer}
			}
			if deleted {
				now := metav1.Now()
				c.DeletionTimestamp = &now
			}
		}
	}
	x := resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: "x", UID: "x"}
	y := resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: "y", UID: "y"}
	failed := pod()
	failed.Status.Phase = corev1.PodFailed
	for name, test := range map[string]struct {
		claim func(*resourcev1.ResourceClaim)
		owner *corev1.Pod
		want  string // with pod x gone
	}{
		"y uses it":             {reserved(true, true, false, y), nil, ""},
		"x and y used it":       {reserved(true, true, false, x, y), nil, "reserved 1 allocated"},
		"x used it":             {reserved(true, true, false, x), nil, "reserved 0, finalizer"},
		"x used it, no final.":  {reserved(true, false, false, x), nil, "reserved 0 allocated"},
		"a herd x uses it":      {reserved(true, true, false, other), nil, ""},
		"never used":            {reserved(true, true, false), nil, ""},
		"about to be allocated": {reserved(false, true, false), nil, ""},
		"deleted, never used":   {reserved(true, true, true), nil, "reserved 0, finalizer"},
		"deleted, not alloc.":   {reserved(false, true, true), nil, "finalizer"},
		"deleted, y uses it":    {reserved(true, true, true, y), nil, ""},
		"of a failed pod":       {of("p-uid", "e"), failed, "delete"},
		"of a running pod":      {of("p-uid", "e"), pod(), ""},
		"of the pod before it":  {of("old", "e"), pod(), "delete"},
		"of a pod not known":    {of("p-uid", "e"), nil, ""},
		"of a failed pod, y uses it": {func(c *resourcev1.ResourceClaim) {
			of("p-uid", "e")(c)
			c.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{y}
		}, failed, ""},
	} {
		r := ForClaim(claim("c", test.claim), map[string]bool{"x": true}, test.owner)
		var got []string
		if r.Status != nil {
			s := fmt.Sprint("reserved ", len(r.Status.ReservedFor))
			if r.Status.Allocation != nil {
				s += " allocated"
			}
			got = append(got, s)
		}
		if r.Finalizer {
			got = append(got, "finalizer")
		}
		if r.Delete {
			got = append(got, "delete")
		}
		if s := strings.Join(got, ", "); s != test.want {
			t.Errorf("%s: %q, want %q", name, s, test.want)
		}
	}
}

// The statuses of other entries do not change, including those that need no claim.
func TestStatuses(t *testing.T) {
	p := pod()
	p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{
		{Name: "z", ResourceClaimName: new("c1")}, {Name: "b"}}
	var got []string
	for _, s := range Statuses(p, map[string]string{"a": "c2", "z": "c3"}) {
		name := "none"
		if s.ResourceClaimName != nil {
			name = *s.ResourceClaimName
		}
		got = append(got, s.Name+" "+name)
	}
	if want := []string{"a c2", "b none", "z c3"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A pod uses the claims that its volumes name, and those made for its ephemeral volumes. A claim of that name in
// another namespace, or of another owner, is a different one (S6.2).
func TestUsesVolumeClaim(t *testing.T) {
	p := pod()
	p.Spec.Volumes = []corev1.Volume{{Name: "config"},
		{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}},
		{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
	owner := *metav1.NewControllerRef(p, corev1.SchemeGroupVersion.WithKind("Pod"))
	for _, c := range []struct {
		what  string
		claim metav1.ObjectMeta
		want  bool
	}{
		{"named", metav1.ObjectMeta{Namespace: "ns", Name: "data"}, true},
		{"named, in another namespace", metav1.ObjectMeta{Namespace: "other", Name: "data"}, false},
		{"not named", metav1.ObjectMeta{Namespace: "ns", Name: "config"}, false},
		{"made for the pod", metav1.ObjectMeta{Namespace: "ns", Name: "p-scratch",
			OwnerReferences: []metav1.OwnerReference{owner}}, true},
		{"of that name, without the owner", metav1.ObjectMeta{Namespace: "ns", Name: "p-scratch"}, false},
	} {
		if got := UsesVolumeClaim(p, &corev1.PersistentVolumeClaim{ObjectMeta: c.claim}); got != c.want {
			t.Errorf("%s: %t", c.what, got)
		}
	}
}
