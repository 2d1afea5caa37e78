package explain

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The explanation of a Service says where its traffic goes, or why it has no destination.
func TestService(t *testing.T) {
	web := func(change func(*corev1.Service)) *corev1.Service {
		s := &corev1.Service{Spec: corev1.ServiceSpec{Selector: map[string]string{"b": "2", "a": "1"},
			ClusterIP: "10.0.0.1",
			Ports:     []corev1.ServicePort{{Port: 80, Protocol: "TCP", TargetPort: intstr.FromString("http")}}}}
		change(s)
		return s
	}
	slice := &discoveryv1.EndpointSlice{Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.2"}},
		{Addresses: []string{"10.1.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false)}}}}
	ported := pod(func(p *corev1.Pod) {
		p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "http", Protocol: "TCP",
			ContainerPort: 8080}}}}
	})
	for _, c := range []struct {
		what   string
		change func(*corev1.Service)
		slices []*discoveryv1.EndpointSlice
		pods   []*corev1.Pod
		want   string
	}{
		{"served", func(*corev1.Service) {}, []*discoveryv1.EndpointSlice{slice}, []*corev1.Pod{ported}, `
  1 ready endpoint: 10.1.0.2
! 1 endpoint not ready: 10.1.0.1
`},
		{"no pod", func(*corev1.Service) {}, nil, nil, `
! no pod matches its selector a=1,b=2
! no endpoint is ready: connections are refused
`},
		{"no port", func(*corev1.Service) {}, nil, []*corev1.Pod{pulling("p")}, `
! no container of its pods has a port named "http" (protocol TCP): port 80 has no endpoint
! no endpoint is ready: connections are refused
! pod p: container c waits: no such image (ErrImagePull)
`},
		{"other number", func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromInt32(81) },
			[]*discoveryv1.EndpointSlice{{Endpoints: slice.Endpoints[:1]}}, []*corev1.Pod{ported}, `
  port 80 goes to port 81 of its pods, whose containers declare 8080: check targetPort
  1 ready endpoint: 10.1.0.2
`},
		{"its number", func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromInt32(8080) },
			[]*discoveryv1.EndpointSlice{{Endpoints: slice.Endpoints[:1]}}, []*corev1.Pod{ported}, `
  1 ready endpoint: 10.1.0.2
`},
		{"no number is declared", func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.IntOrString{} },
			[]*discoveryv1.EndpointSlice{{Endpoints: slice.Endpoints[:1]}}, []*corev1.Pod{pod(func(*corev1.Pod) {})}, `
  1 ready endpoint: 10.1.0.2
`},
		{"headless", func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.Selector = "None", nil }, nil, nil, `
  has no selector: its endpoints are not made by carob
! no endpoint is ready: its name has no address in DNS
`},
		{"alias", func(s *corev1.Service) { s.Spec.Type, s.Spec.ExternalName = "ExternalName", "a.example" }, nil, nil, `
  is a name of a.example in DNS; it has no endpoints
`},
		{"balancer", func(s *corev1.Service) { s.Spec.Type, s.Spec.Selector = "LoadBalancer", nil },
			[]*discoveryv1.EndpointSlice{slice}, nil, `
! waits for an address of a load balancer
  has no selector: its endpoints are not made by carob
  1 ready endpoint: 10.1.0.2
! 1 endpoint not ready: 10.1.0.1
`},
	} {
		expectLines(t, c.what, Service(web(c.change), c.slices, Related{Pods: c.pods}, now), c.want)
	}
}

// Each reason why a claim waits has its sentence.
func TestClaim(t *testing.T) {
	class := func(mode storagev1.VolumeBindingMode, provisioner string) *storagev1.StorageClass {
		return &storagev1.StorageClass{Provisioner: provisioner, VolumeBindingMode: &mode}
	}
	late := class(storagev1.VolumeBindingWaitForFirstConsumer, "carob.dev/local-path")
	taken := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{
		Namespace: "a", Name: "b"}}, Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound}}
	for _, c := range []struct {
		what   string
		change func(*corev1.PersistentVolumeClaim)
		class  *storagev1.StorageClass
		volume *corev1.PersistentVolume
		pods   []*corev1.Pod
		want   string
	}{
		{"bound", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.VolumeName, c.Status.Phase = "v", corev1.ClaimBound
			c.Status.Capacity = corev1.ResourceList{"storage": resource.MustParse("1Gi")}
		}, late, nil, nil, `
  is bound to volume v (1Gi)
`},
		{"grows", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.VolumeName, c.Status.Phase = "v", corev1.ClaimBound
			c.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{Type: "FileSystemResizePending",
				Status: "True", Message: "a pod has to use it"}}
		}, late, nil, nil, `
  is bound to volume v (0)
! FileSystemResizePending: a pod has to use it
! event 2m ago: it did not work (Failed)
`},
		{"lost", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName, c.Status.Phase = "v", corev1.ClaimLost },
			late, nil, nil, `
! has lost its volume v: it does not exist any more, or is bound to another claim
! event 2m ago: it did not work (Failed)
`},
		{"no class", func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = nil }, nil, nil, nil, `
! names no StorageClass, and no StorageClass is the default
! event 2m ago: it did not work (Failed)
`},
		{"class missing", func(*corev1.PersistentVolumeClaim) {}, nil, nil, nil, `
! its StorageClass "fast" does not exist
! event 2m ago: it did not work (Failed)
`},
		{"without class", func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = new("") }, nil, nil, nil, `
! waits for a volume without a class that fits it: no provisioner creates one
! event 2m ago: it did not work (Failed)
`},
		{"no pod", func(*corev1.PersistentVolumeClaim) {}, late, nil, []*corev1.Pod{pod(func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodSucceeded
		})}, `
! waits for the first pod that uses it: its StorageClass "fast" binds only then
! event 2m ago: it did not work (Failed)
`},
		{"a pod", func(*corev1.PersistentVolumeClaim) {}, late, nil, []*corev1.Pod{pulling("p")}, `
! waits for a volume from carob.dev/local-path; it is used by pod p
! event 2m ago: it did not work (Failed)
`},
		{"at once", func(*corev1.PersistentVolumeClaim) {}, class(storagev1.VolumeBindingImmediate, "x/y"), nil, nil, `
! waits for a volume from x/y
! event 2m ago: it did not work (Failed)
`},
		{"by hand", func(*corev1.PersistentVolumeClaim) {}, class(storagev1.VolumeBindingImmediate,
			"kubernetes.io/no-provisioner"), nil, nil, `
! waits for a volume of class "fast" that fits it: no provisioner creates one
! event 2m ago: it did not work (Failed)
`},
		{"no volume", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "v" }, late, nil, nil, `
! waits for volume v, which does not exist
! event 2m ago: it did not work (Failed)
`},
		{"another's volume", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "v" }, late, taken, nil, `
! waits for volume v: it is Bound, and reserved for claim a/b
! event 2m ago: it did not work (Failed)
`},
		{"deleted", func(c *corev1.PersistentVolumeClaim) {
			c.DeletionTimestamp, c.Finalizers = new(before(time.Hour)), []string{"kubernetes.io/pvc-protection"}
			c.Spec.VolumeName, c.Status.Phase = "v", corev1.ClaimBound
		}, late, nil, []*corev1.Pod{pulling("a"), pulling("b")}, `
! was deleted 60m ago
! stays until its finalizers are removed: kubernetes.io/pvc-protection
! is used by pods a, b
  is bound to volume v (0)
! event 2m ago: it did not work (Failed)
`},
	} {
		claim := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: new("fast")}}
		c.change(claim)
		events := []corev1.Event{{Type: "Warning", Reason: "Failed", Message: "it did not work",
			LastTimestamp: before(2 * time.Minute)}}
		expectLines(t, c.what, Claim(claim, c.class, c.volume, Related{Pods: c.pods, Events: events}, now), c.want)
	}
}

func TestNode(t *testing.T) {
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: "True", LastTransitionTime: before(time.Hour)}
	expectLines(t, "ready", Node(&corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeDiskPressure, Status: "False"}, ready}}}, nil, now), "  has been ready for 60m\n")
	expectLines(t, "new", Node(&corev1.Node{}, nil, now), "! its agent has not reported anything about it\n")
	away := ready
	away.Status, away.Reason, away.Message = "Unknown", "NodeStatusUnknown", "its agent stopped reporting"
	expectLines(t, "away", Node(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"},
		Spec: corev1.NodeSpec{Unschedulable: true, Taints: []corev1.Taint{
			{Key: "node.kubernetes.io/unreachable", Effect: "NoExecute"}, {Key: "gpu", Value: "a", Effect: "NoSchedule"}}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{away,
			{Type: corev1.NodeDiskPressure, Status: "True", Message: "low on disk"}}}}, nil, now), "\n"+
		"! has not been ready for 60m: its agent stopped reporting (NodeStatusUnknown)\n! DiskPressure: low on disk\n"+
		"! is cordoned: it gets no new pods until `kubectl uncordon n`\n"+
		"! accepts only pods that tolerate its taint gpu=a:NoSchedule\n")
}

func TestNamespace(t *testing.T) {
	expectLines(t, "active", Namespace(&corev1.Namespace{}, nil, now), "  is active\n")
	n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: new(before(time.Minute))},
		Status: corev1.NamespaceStatus{Phase: corev1.NamespaceTerminating}}
	expectLines(t, "deleted", Namespace(n, nil, now), "! was deleted 60s ago\n! its objects are not counted yet\n")
	n.Status.Conditions = []corev1.NamespaceCondition{{Type: "NamespaceDeletionContentFailure", Status: "False"},
		{Type: "NamespaceFinalizersRemaining", Status: "True", Reason: "SomeFinalizersRemain", Message: "a/b in 1 object"}}
	expectLines(t, "held", Namespace(n, nil, now), `
! was deleted 60s ago
! NamespaceFinalizersRemaining: a/b in 1 object (SomeFinalizersRemain)
`)
	n.Name, n.Spec.Finalizers = "shop", []corev1.FinalizerName{"kubernetes", "example.com/billing"}
	c := &Contents{Objects: []Remaining{{"roles.rbac.authorization.k8s.io", "a'; rm x", []string{"example.com/c"}, true},
		{"widgets.example.com", "w", []string{"example.com/c", "foregroundDeletion"}, true},
		{"pods", "p", nil, true}, {"configmaps", "late", nil, false}}, Unreadable: []string{"group: no answer"}}
	expectLines(t, "named", Namespace(n, c, now), `
! was deleted 60s ago
! roles.rbac.authorization.k8s.io/a'; rm x waits for its finalizers to be removed: `+
		`example.com/c (only the controller that set it removes it)
! widgets.example.com/w waits for its finalizers to be removed: `+
		`example.com/c (only the controller that set it removes it), `+
		`foregroundDeletion (the garbage collector removes it when its dependents are gone)
! pods/p is ending
! configmaps/late is not deleted yet
  if no controller is left that would remove a finalizer, remove it yourself (what the controller would `+
		`have cleaned up stays): `+
		`kubectl patch widgets.example.com w -n shop --type=merge -p '{"metadata":{"finalizers":null}}'
! could not be listed: group: no answer
! stays until all of spec.finalizers are removed: [kubernetes example.com/billing]
`)
	c = &Contents{More: true}
	for range mostRemaining + 3 {
		c.Objects = append(c.Objects, Remaining{Resource: "configmaps", Name: "m", Deleted: true})
	}
	lines := Namespace(n, c, now)
	if got := lines[1+mostRemaining].Text; got != "and 3 or more other objects remain" {
		t.Errorf("many objects: %q", got)
	}
}
