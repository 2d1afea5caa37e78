package kinds

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"carob/internal/kinds/devices"
	"carob/internal/kinds/registry"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func all() []*registry.Resource { return BuiltIn(nil, devices.DeviceChecks{}) }

// Every kind's row has as many cells as the kind has columns, also for an empty object, and each
// cell has a type that a table supports.
func TestRowsFitColumns(t *testing.T) {
	for _, r := range all() {
		if r.Table.Row == nil {
			continue
		}
		row := r.Table.Row(r.New(), now)
		if len(row) != len(r.Table.Columns) {
			t.Errorf("%s: %d cells, %d columns", r.Plural, len(row), len(r.Table.Columns))
		}
		for i, c := range row {
			switch c.(type) {
			case string, int64, bool:
			default:
				t.Errorf("%s: column %s is a %T", r.Plural, r.Table.Columns[i].Name, c)
			}
		}
	}
}

// Descriptors name each resource once, and their field selectors name existing fields.
func TestDescriptors(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range all() {
		gr := r.GroupResource().String()
		if seen[gr] {
			t.Errorf("%s is described twice", gr)
		}
		seen[gr] = true
		for _, f := range r.Index {
			if r.Fields[f] == nil {
				t.Errorf("%s: index over unknown field %s", gr, f)
			}
		}
		for name, f := range r.Fields {
			_ = f(r.New()) // must not panic on an empty object
			if strings.HasPrefix(name, "metadata.") {
				t.Errorf("%s: %s is selectable anyway", gr, name)
			}
		}
	}
}

func TestRows(t *testing.T) {
	created := metav1.NewTime(now.Add(-90 * time.Minute))
	meta := metav1.ObjectMeta{Name: "x", Namespace: "ns", CreationTimestamp: created}
	for _, tc := range []struct {
		kind string
		obj  runtime.Object
		want string
	}{
		{"Node", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", CreationTimestamp: created,
			Labels: map[string]string{"node-role.kubernetes.io/worker": "",
				"node-role.kubernetes.io/control-plane": ""}},
			Spec: corev1.NodeSpec{Unschedulable: true},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady,
				Status: corev1.ConditionTrue}},
				Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}},
				NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v1.37.2", KernelVersion: "6.1",
					ContainerRuntimeVersion: "carob://1"}}},
			"n|Ready,SchedulingDisabled|control-plane,worker|90m|v1.37.2|192.0.2.1|<none>|<unknown>|6.1|carob://1"},
		{"Node", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", CreationTimestamp: created},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady,
				Status: corev1.ConditionUnknown}}}},
			"n|NotReady|<none>|90m||<none>|<none>|<unknown>|<unknown>|<unknown>"},
		{"Event", &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e"},
			LastTimestamp:  metav1.NewTime(now.Add(-5 * time.Second)),
			FirstTimestamp: metav1.NewTime(now.Add(-time.Minute)), Count: 3,
			Type: "Warning", Reason: "Unhealthy",
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "p", FieldPath: "spec.containers{c}"},
			Message:        "failed \n",
			Source:         corev1.EventSource{Component: "kubelet", Host: "n"}},
			"5s|Warning|Unhealthy|pod/p|spec.containers{c}|kubelet, n|failed|60s|3|e"},
		{"Event", &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e"},
			EventTime: metav1.NewMicroTime(now.Add(-7 * time.Second)), Type: "Normal", Reason: "Scheduled",
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "p"}, ReportingController: "default-scheduler",
			ReportingInstance: "s-1"},
			"7s|Normal|Scheduled|pod/p||default-scheduler, s-1||7s|1|e"},
		{"Endpoints", &corev1.Endpoints{ObjectMeta: meta,
			Subsets: []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: "10.0.0.1"}, {IP: "10.0.0.2"}},
				Ports: []corev1.EndpointPort{{Port: 80}, {Port: 443}}}}},
			"x|10.0.0.1:80,10.0.0.1:443,10.0.0.2:80 + 1 more...|90m"},
		{"PersistentVolumeClaim",
			&corev1.PersistentVolumeClaim{ObjectMeta: meta,
				Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "v", StorageClassName: new("fast")},
				Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound,
					Capacity:    corev1.ResourceList{"storage": resource.MustParse("1Gi")},
					AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany, corev1.ReadWriteOnce}}},
			"x|Bound|v|1Gi|RWO,RWX|fast|<unset>|90m|<unset>"},
		{"ResourceQuota", &corev1.ResourceQuota{ObjectMeta: meta, Status: corev1.ResourceQuotaStatus{
			Hard: corev1.ResourceList{"pods": resource.MustParse("10"), "limits.cpu": resource.MustParse("4")},
			Used: corev1.ResourceList{"pods": resource.MustParse("2"), "limits.cpu": resource.MustParse("500m")}}},
			"x|pods: 2/10|limits.cpu: 500m/4|90m"},
		{"Deployment", &appsv1.Deployment{ObjectMeta: meta,
			Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](3),
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
				Template: corev1.PodTemplateSpec{
					Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c1", Image: "i1"},
						{Name: "c2", Image: "i2"}}}}},
			Status: appsv1.DeploymentStatus{ReadyReplicas: 1, UpdatedReplicas: 2, AvailableReplicas: 1}},
			"x|1/3|2|1|90m|c1,c2|i1,i2|a=b"},
		{"Job", &batchv1.Job{ObjectMeta: meta, Spec: batchv1.JobSpec{Completions: ptr.To[int32](2)},
			Status: batchv1.JobStatus{Succeeded: 2, StartTime: &created,
				CompletionTime: new(metav1.NewTime(created.Add(12 * time.Second))),
				Conditions:     []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}}},
			"x|Complete|2/2|12s|90m|||<none>"},
		{"CronJob", &batchv1.CronJob{ObjectMeta: meta,
			Spec: batchv1.CronJobSpec{Schedule: "* * * * *", Suspend: new(true)}},
			"x|* * * * *|<none>|True|0|<none>|90m|||<none>"},
		{"EndpointSlice", &discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: "IPv4",
			Ports: []discoveryv1.EndpointPort{{Port: ptr.To[int32](80)}, {}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"a"}}, {Addresses: []string{"b"}},
				{Addresses: []string{"c"}}, {Addresses: []string{"d"}}}},
			"x|IPv4|80,*|a,b,c + 1 more...|90m"},
		{"RoleBinding", &rbacv1.RoleBinding{ObjectMeta: meta,
			RoleRef:  rbacv1.RoleRef{Kind: "ClusterRole", Name: "view"},
			Subjects: []rbacv1.Subject{{Kind: "User", Name: "u"}, {Kind: "ServiceAccount", Namespace: "n", Name: "s"}}},
			"x|ClusterRole/view|90m|u||n/s"},
		{"ControllerRevision",
			&appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: "r", CreationTimestamp: created,
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web",
					Controller: new(true)}}}, Revision: 4},
			"r|statefulset.apps/web|4|90m"},
	} {
		for _, r := range all() {
			if r.Kind.Kind != tc.kind {
				continue
			}
			cells := r.Table.Row(tc.obj, now)
			got := make([]string, len(cells))
			for i, c := range cells {
				got[i] = fmt.Sprint(c)
			}
			if s := strings.Join(got, "|"); s != tc.want {
				t.Errorf("%s:\n got %s\nwant %s", tc.kind, s, tc.want)
			}
		}
	}
}
