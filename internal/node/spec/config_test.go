package spec

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"carob/internal/core/resources"
)

// A whole container, field by field (L3.138–164).
func TestContainerConfig(t *testing.T) {
	pod, node := testPod(), testNode()
	pod.Spec.TerminationGracePeriodSeconds = new(int64(30))
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{
		RunAsUser: new(int64(1000)), RunAsGroup: new(int64(2000)), FSGroup: new(int64(3000)),
		SupplementalGroups:       []int64{4000},
		SupplementalGroupsPolicy: new(corev1.SupplementalGroupsPolicyStrict),
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost,
			LocalhostProfile: new("p/q.json")},
	}
	c := &pod.Spec.Containers[0]
	c.Command, c.Args, c.WorkingDir = []string{"sh", "-c"}, []string{"echo $(WHO) $$(WHO) $(NONE)"}, "/srv"
	c.Env = []corev1.EnvVar{{Name: "WHO", Value: "me"}}
	c.Ports = []corev1.ContainerPort{{ContainerPort: 80}}
	c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 3}}}
	c.Stdin, c.StdinOnce, c.TTY = true, true, true
	c.Resources = corev1.ResourceRequirements{
		Requests: corev1.ResourceList{"cpu": resource.MustParse("500m"), "memory": resource.MustParse("1Gi")},
		Limits:   corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("2Gi")},
	}
	c.SecurityContext = &corev1.SecurityContext{
		RunAsUser: new(int64(1001)), AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
		Capabilities:    &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN"}, Drop: []corev1.Capability{"ALL"}},
		AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined},
	}
	c.VolumeMounts = []corev1.VolumeMount{
		{Name: "a", MountPath: "/a", MountPropagation: new(corev1.MountPropagationBidirectional)},
		{Name: "ro", MountPath: "rel", SubPathExpr: "x/$(WHO)"},
		{Name: "a", MountPath: "/r", ReadOnly: true, RecursiveReadOnly: new(corev1.RecursiveReadOnlyIfPossible)},
	}
	a := &api{volumes: map[string]Volume{"a": {HostPath: "/vols/a", Relabel: true},
		"ro": {HostPath: "/vols/ro", ReadOnly: true}}}
	got, err := Assemble(t.Context(), ContainerInput{
		Pod: pod, Container: c, Attempt: 3, Node: node, PodIPs: []string{"10.1.0.2"},
		Image: Image{Ref: "sha256:1", UID: new(int64(0))},
	}, a, a)
	if err != nil {
		t.Fatal(err)
	}
	want := &cri.ContainerConfig{
		Metadata:   &cri.ContainerMetadata{Name: "c", Attempt: 3},
		Image:      &cri.ImageSpec{Image: "sha256:1", UserSpecifiedImage: "nginx"},
		Command:    []string{"sh", "-c"},
		Args:       []string{"echo me $(WHO) $(NONE)"},
		WorkingDir: "/srv",
		Envs:       []*cri.KeyValue{{Key: "WHO", Value: []byte("me")}},
		Mounts: []*cri.Mount{
			{ContainerPath: "/a", HostPath: "/vols/a", SelinuxRelabel: true,
				Propagation: cri.MountPropagation_PROPAGATION_BIDIRECTIONAL},
			{ContainerPath: "/rel", HostPath: "/sub/ro/1", Readonly: true},
			{ContainerPath: "/r", HostPath: "/vols/a", SelinuxRelabel: true, Readonly: true},
			{ContainerPath: "/etc/hosts", HostPath: "/pods/u-1/etc-hosts", SelinuxRelabel: true},
			{ContainerPath: "/dev/termination-log", HostPath: "/pods/u-1/containers/c/12345678", SelinuxRelabel: true},
		},
		Labels: map[string]string{
			"io.kubernetes.pod.name": "web", "io.kubernetes.pod.namespace": "shop", "io.kubernetes.pod.uid": "u-1",
			"io.kubernetes.container.name": "c",
		},
		Annotations: map[string]string{
			"io.kubernetes.container.hash": Hash(c), "io.kubernetes.container.restartCount": "3",
			"io.kubernetes.container.terminationMessagePath":   "/dev/termination-log",
			"io.kubernetes.container.terminationMessagePolicy": "File",
			"io.kubernetes.container.preStopHandler":           `{"sleep":{"seconds":3}}`,
			"io.kubernetes.container.ports":                    `[{"containerPort":80}]`,
			"io.kubernetes.pod.terminationGracePeriod":         "30",
		},
		LogPath: "c/3.log", Stdin: true, StdinOnce: true, Tty: true,
		Linux: &cri.LinuxContainerConfig{
			Resources: &cri.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 100000, CpuShares: 512,
				MemoryLimitInBytes: 2 << 30, OomScoreAdj: 750},
			SecurityContext: &cri.LinuxContainerSecurityContext{
				NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_POD,
					Pid: cri.NamespaceMode_CONTAINER, Ipc: cri.NamespaceMode_POD},
				RunAsUser:                &cri.Int64Value{Value: 1001},
				RunAsGroup:               &cri.Int64Value{Value: 2000},
				SupplementalGroups:       []int64{4000, 3000},
				SupplementalGroupsPolicy: cri.SupplementalGroupsPolicy_Strict,
				NoNewPrivs:               true, ReadonlyRootfs: true,
				Capabilities: &cri.Capability{AddCapabilities: []string{"NET_ADMIN"},
					DropCapabilities: []string{"ALL"}},
				Seccomp: &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost,
					LocalhostRef: "/data/seccomp/p/q.json"},
				Apparmor:    &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined},
				MaskedPaths: maskedPaths, ReadonlyPaths: readonlyPaths,
			},
		},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if a.subPaths[0] != (SubPath{UID: "u-1", Container: "c", Index: 1, Volume: "ro", Path: "x/me", ReadOnly: true}) {
		t.Errorf("sub-path asked for: %+v", a.subPaths)
	}

	r := Restore(got.Labels, got.Annotations)
	if r.RestartCount != 3 || r.Name != "c" || r.PodUID != "u-1" || r.PreStop.Sleep.Seconds != 3 ||
		*r.TerminationGrace != 30 || r.DeletionGrace != nil || r.Hash != Hash(c) {
		t.Errorf("restored %+v", r)
	}
}

// What ends in CreateContainerConfigError (L3.138, L3.160), and what does not.
func TestContainerErrors(t *testing.T) {
	mount := func(m corev1.VolumeMount) func(*ContainerInput) {
		return func(in *ContainerInput) { in.Container.VolumeMounts = []corev1.VolumeMount{m} }
	}
	nonRoot := func(user *int64, img Image) func(*ContainerInput) {
		return func(in *ContainerInput) {
			in.Container.SecurityContext = &corev1.SecurityContext{RunAsNonRoot: new(true), RunAsUser: user}
			in.Image = img
		}
	}
	shared := func(p corev1.PodSecurityContext) func(*ContainerInput) {
		return func(in *ContainerInput) { in.Pod.Spec.SecurityContext = &p }
	}
	const ids = ": ids are numbers from 0 to 2147483647"
	tests := []struct {
		name   string
		change func(*ContainerInput)
		err    string
	}{
		{"runAsUser 0", nonRoot(new(int64(0)), Image{}),
			`container's runAsUser breaks non-root policy (pod: "web_shop(u-1)", container: c)`},
		{"image is root", nonRoot(nil, Image{UID: new(int64(0))}),
			`container has runAsNonRoot and image will run as root (pod: "web_shop(u-1)", container: c)`},
		{"image says no user", nonRoot(nil, Image{}),
			`container has runAsNonRoot and image will run as root (pod: "web_shop(u-1)", container: c)`},
		{"image user is a name", nonRoot(nil, Image{Username: "www"}),
			`container has runAsNonRoot and image has non-numeric user (www), cannot verify user is non-root (pod: "web_shop(u-1)", container: c)`},
		{"image user is a number", nonRoot(nil, Image{UID: new(int64(9))}), ""},
		{"image user is not an id", nonRoot(nil, Image{UID: new(int64(1 << 32))}),
			`image of container "c": user or group 4294967296` + ids},
		{"image user is not an id, negative", func(in *ContainerInput) { in.Image = Image{UID: new(int64(-1))} },
			`image of container "c": user or group -1` + ids},
		{"a bad runAsUser", nonRoot(new(int64(1<<32)), Image{}), `container "c": user or group 4294967296` + ids},
		{"runAsGroup is not an id", func(in *ContainerInput) {
			in.Container.SecurityContext = &corev1.SecurityContext{RunAsGroup: new(int64(-1))}
		}, `container "c": user or group -1` + ids},
		{"runAsUser of the pod is not an id", shared(corev1.PodSecurityContext{RunAsUser: new(int64(1 << 31))}),
			"user or group 2147483648" + ids},
		{"runAsGroup of the pod is not an id", shared(corev1.PodSecurityContext{RunAsGroup: new(int64(1 << 40))}),
			"user or group 1099511627776" + ids},
		{"fsGroup is not an id", shared(corev1.PodSecurityContext{FSGroup: new(int64(1 << 32))}),
			"user or group 4294967296" + ids},
		{"a bad supplemental group", shared(corev1.PodSecurityContext{SupplementalGroups: []int64{5, 1 << 32}}),
			"user or group 4294967296" + ids},
		{"own user", nonRoot(new(int64(5)), Image{UID: new(int64(0))}), ""},
		{"no such volume", mount(corev1.VolumeMount{Name: "no"}),
			`cannot find volume "no" to mount into container "c"`},
		{"absolute subPath", mount(corev1.VolumeMount{Name: "v", SubPath: "/x"}),
			"error SubPath `/x` must not be an absolute path"},
		{"backsteps", mount(corev1.VolumeMount{Name: "v", SubPath: "a/../../x"}),
			"unable to provision SubPath `a/../../x`: must not contain '..'"},
		{"unknown variable", mount(corev1.VolumeMount{Name: "v", SubPathExpr: "$(NO)/x"}), "missing value for NO"},
		{"dots in a name", mount(corev1.VolumeMount{Name: "v", SubPath: "a..b"}), ""},
		{"recursive read-only",
			mount(corev1.VolumeMount{Name: "v", ReadOnly: true,
				RecursiveReadOnly: new(corev1.RecursiveReadOnlyEnabled)}),
			`volume mount "v" of container "c" requires a recursive read-only mount, which the runtime does not support`},
		{"seccomp outside", func(in *ContainerInput) {
			in.Container.SecurityContext = &corev1.SecurityContext{
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost,
					LocalhostProfile: new("../x")}}
		}, `localhostProfile "../x" of container "c" leaves the seccomp directory of the node`},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			pod := testPod()
			in := ContainerInput{Pod: pod, Container: &pod.Spec.Containers[0], Node: testNode()}
			tc.change(&in)
			a := &api{volumes: map[string]Volume{"v": {HostPath: "/vols/v"}}}
			_, err := Assemble(t.Context(), in, a, a)
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || err.Error() != tc.err) {
				t.Errorf("got %v, want %s", err, tc.err)
			}
		})
	}
}

// Namespaces (L3.162), privileged containers and procMount (L3.161).
func TestSecurity(t *testing.T) {
	build := func(change func(*corev1.Pod, *ContainerInput)) *cri.LinuxContainerSecurityContext {
		t.Helper()
		pod := testPod()
		in := ContainerInput{Pod: pod, Container: &pod.Spec.Containers[0], Node: testNode(),
			Image: Image{UID: new(int64(33))}}
		change(pod, &in)
		cfg, err := build(in)
		if err != nil {
			t.Fatal(err)
		}
		return cfg.Linux.SecurityContext
	}
	sc := build(func(p *corev1.Pod, _ *ContainerInput) {
		p.Spec.HostNetwork, p.Spec.HostIPC, p.Spec.HostPID = true, true, true
	})
	if n := sc.NamespaceOptions; n.Network != cri.NamespaceMode_NODE || n.Ipc != cri.NamespaceMode_NODE ||
		n.Pid != cri.NamespaceMode_NODE {
		t.Errorf("host namespaces: %v", n)
	}
	if sc.RunAsUser.GetValue() != 33 || sc.RunAsUsername != "" {
		t.Errorf("user of the image: %v", sc)
	}
	sc = build(func(_ *corev1.Pod, in *ContainerInput) { in.Image = Image{} })
	if sc.RunAsUser.GetValue() != 0 || sc.RunAsUser == nil {
		t.Errorf("an image without a user runs as root: %v", sc)
	}
	sc = build(func(_ *corev1.Pod, in *ContainerInput) { in.Image = Image{Username: "www"} })
	if sc.RunAsUser != nil || sc.RunAsUsername != "www" {
		t.Errorf("named user of the image: %v", sc)
	}
	sc = build(func(p *corev1.Pod, in *ContainerInput) { in.TargetID = "t1" })
	if n := sc.NamespaceOptions; n.Pid != cri.NamespaceMode_TARGET || n.TargetId != "t1" {
		t.Errorf("target: %v", n)
	}
	sc = build(func(p *corev1.Pod, in *ContainerInput) { p.Spec.ShareProcessNamespace = new(true); in.TargetID = "t1" })
	if n := sc.NamespaceOptions; n.Pid != cri.NamespaceMode_POD {
		t.Errorf("shared: %v", n)
	}
	sc = build(func(_ *corev1.Pod, in *ContainerInput) {
		in.Container.SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
	})
	if !sc.Privileged || sc.MaskedPaths != nil || sc.NoNewPrivs ||
		sc.Seccomp.ProfileType != cri.SecurityProfile_Unconfined {
		t.Errorf("privileged: %v", sc)
	}
	thermal := "/sys/devices/system/cpu/cpu3/thermal_throttle"
	sc = build(func(_ *corev1.Pod, in *ContainerInput) { in.Node.ThermalEvents = []string{thermal} })
	if !slices.Equal(sc.MaskedPaths, append(slices.Clone(maskedPaths), thermal)) {
		t.Errorf("a machine that counts thermal events: masked are %v", sc.MaskedPaths)
	}
	sc = build(func(p *corev1.Pod, in *ContainerInput) {
		p.Spec.HostUsers = new(false)
		in.Node.ThermalEvents = []string{thermal}
		in.Container.SecurityContext = &corev1.SecurityContext{ProcMount: new(corev1.UnmaskedProcMount)}
	})
	if sc.MaskedPaths != nil || sc.ReadonlyPaths != nil {
		t.Errorf("unmasked: %v", sc)
	}
	sc = build(func(p *corev1.Pod, in *ContainerInput) {
		in.Node.SeccompDefault = true
		p.Annotations["container.apparmor.security.beta.kubernetes.io/c"] = "localhost/prof"
	})
	if sc.Seccomp.ProfileType != cri.SecurityProfile_RuntimeDefault || sc.Apparmor.LocalhostRef != "prof" {
		t.Errorf("defaults: %v", sc)
	}
}

// Pods that request no capabilities get fewer than the runtime's default; requested ones are granted.
func TestHardening(t *testing.T) {
	seccomp := func(kind corev1.SeccompProfileType) *corev1.SecurityContext {
		return &corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: kind}}
	}
	capabilities := func(add ...corev1.Capability) *corev1.SecurityContext {
		return &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: add}}
	}
	for _, tc := range []struct {
		name    string
		sc      *corev1.SecurityContext
		pod     *corev1.PodSecurityContext
		node    func(*Node)
		profile cri.SecurityProfile_ProfileType
		drop    string
	}{
		{"nothing", nil, nil, nil, cri.SecurityProfile_RuntimeDefault, "NET_RAW"},
		{"unconfined by the container", seccomp(corev1.SeccompProfileTypeUnconfined), nil, nil,
			cri.SecurityProfile_Unconfined, "NET_RAW"},
		{"unconfined by the pod", nil,
			&corev1.PodSecurityContext{SeccompProfile: seccomp(corev1.SeccompProfileTypeUnconfined).SeccompProfile},
			nil, cri.SecurityProfile_Unconfined, "NET_RAW"},
		{"--seccomp-default=false", nil, nil, func(n *Node) { n.SeccompDefault = false },
			cri.SecurityProfile_Unconfined, "NET_RAW"},
		{"--allow-net-raw", nil, nil, func(n *Node) { n.NetRaw = true }, cri.SecurityProfile_RuntimeDefault, ""},
		{"asks for it", capabilities("NET_RAW"), nil, nil, cri.SecurityProfile_RuntimeDefault, ""},
		{"asks for it with its other name", capabilities("cap_net_raw"), nil, nil, cri.SecurityProfile_RuntimeDefault,
			""},
		{"asks for all", capabilities("ALL"), nil, nil, cri.SecurityProfile_RuntimeDefault, ""},
		{"asks for another", capabilities("NET_ADMIN"), nil, nil, cri.SecurityProfile_RuntimeDefault, "NET_RAW"},
		{"wants none", &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
			nil, nil, cri.SecurityProfile_RuntimeDefault, "ALL"},
		{"privileged", &corev1.SecurityContext{Privileged: new(true)}, nil, nil, cri.SecurityProfile_Unconfined, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := testPod()
			pod.Spec.SecurityContext, pod.Spec.Containers[0].SecurityContext = tc.pod, tc.sc
			in := ContainerInput{Pod: pod, Container: &pod.Spec.Containers[0], Node: testNode(),
				Image: Image{UID: new(int64(33))}}
			in.Node.SeccompDefault = true
			if tc.node != nil {
				tc.node(in.Node)
			}
			cfg, err := build(in)
			if err != nil {
				t.Fatal(err)
			}
			sc := cfg.Linux.SecurityContext
			if got := strings.Join(sc.Capabilities.DropCapabilities, ","); sc.Seccomp.ProfileType != tc.profile ||
				got != tc.drop {
				t.Errorf("seccomp %s, without %q; want %s, without %q", sc.Seccomp.ProfileType, got, tc.profile,
					tc.drop)
			}
		})
	}
}

// Huge pages and swap are 0 unless requested (L3.117j, l, n).
func TestPagesAndSwap(t *testing.T) {
	page := func(size, amount string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceName(corev1.ResourceHugePagesPrefix +
			size): resource.MustParse(amount)}
	}
	pages := func(r *cri.LinuxContainerResources) (out string) {
		for _, h := range r.HugepageLimits {
			out += fmt.Sprintf("%s=%d ", h.PageSize, h.Limit)
		}
		return out
	}
	for _, tc := range []struct {
		container, pod corev1.ResourceList
		want           string
	}{
		{nil, nil, "2MB=0 1GB=0 "},
		{page("2Mi", "4Mi"), nil, "2MB=4194304 1GB=0 "},
		{nil, page("1Gi", "2Gi"), "1GB=2147483648 2MB=0 "},
		{page("2Mi", "2Mi"), page("2Mi", "8Mi"), "2MB=2097152 1GB=0 "},
	} {
		pod := testPod()
		pod.Spec.Containers[0].Resources.Limits = tc.container
		if tc.pod != nil {
			pod.Spec.Resources = &corev1.ResourceRequirements{Limits: tc.pod}
		}
		if got := pages(ContainerResources(pod, &pod.Spec.Containers[0],
			&Node{PageSizes: []string{"2MB", "1GB"}})); got != tc.want {
			t.Errorf("%v in %v: %q, want %q", tc.container, tc.pod, got, tc.want)
		}
	}
	for _, tc := range []struct {
		v2, controller bool
		limit, unified string
		both           int64
	}{
		{true, true, "", "0", 0}, // without a limit of memory, too
		{true, true, "1Mi", "0", 0},
		{true, false, "1Mi", "", 0},
		{false, true, "1Mi", "", 1 << 20},
		{false, true, "", "", 0},
		{false, false, "1Mi", "", 0},
	} {
		pod := testPod()
		pod.Spec.Containers[0].Resources.Limits = nil
		if tc.limit != "" {
			pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
				corev1.ResourceMemory: resource.MustParse(tc.limit)}
		}
		r := ContainerResources(pod, &pod.Spec.Containers[0], &Node{CgroupV2: tc.v2, SwapController: tc.controller})
		if r.Unified["memory.swap.max"] != tc.unified || r.MemorySwapLimitInBytes != tc.both {
			t.Errorf("%+v: %v", tc, r)
		}
	}
}

// Memory that is kept for containers is a matter of cgroup v2 (S11.G).
func TestMemoryQoS(t *testing.T) {
	pod := testPod()
	list := func(q string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(q)}
	}
	pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list("64Mi")}
	node := &Node{CgroupV2: true, Allocatable: list("1Gi"),
		MemoryQoS: resources.MemoryQoS{Tiered: true, Throttling: 0.5}}
	got := ContainerResources(pod, &pod.Spec.Containers[0], node).Unified
	if got["memory.low"] != "67108864" || got["memory.high"] != "570425344" || got["memory.oom.group"] != "1" {
		t.Errorf("%v", got)
	}
	node.CgroupV2 = false
	if got := ContainerResources(pod, &pod.Spec.Containers[0], node).Unified; len(got) > 0 {
		t.Errorf("version 1: %v", got)
	}
}

// The host ports of a sandbox are those of the containers that run together: validation lets an init container that
// runs before them have one of theirs.
func TestHostPorts(t *testing.T) {
	pod := testPod()
	ports := func(container int32) []corev1.ContainerPort {
		return []corev1.ContainerPort{{ContainerPort: container, HostPort: 8000 + container}, {ContainerPort: 1}}
	}
	pod.Spec.InitContainers = []corev1.Container{
		{Name: "init", Ports: []corev1.ContainerPort{{ContainerPort: 79, HostPort: 8080}}},
		{Name: "sidecar", Ports: ports(81), RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}}
	pod.Spec.Containers[0].Ports = ports(80)
	got, _, err := SandboxConfig(SandboxInput{Pod: pod, Node: testNode(), CgroupParent: "/kubepods/besteffort/podu-1"})
	if err != nil {
		t.Fatal(err)
	}
	var list []int32
	for _, m := range got.PortMappings {
		list = append(list, m.ContainerPort, m.HostPort)
	}
	if want := []int32{81, 8081, 80, 8080}; !slices.Equal(list, want) {
		t.Errorf("host ports %v, want %v", list, want)
	}
}

func TestSandboxConfig(t *testing.T) {
	pod := testPod()
	pod.Spec.Hostname, pod.Spec.Subdomain, pod.Spec.SetHostnameAsFQDN = "h", "sub", new(true)
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "net/core/somaxconn",
		Value: "1"}}, RunAsGroup: new(int64(7))}
	pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80},
		{ContainerPort: 53, HostPort: 5353, Protocol: corev1.ProtocolUDP, HostIP: "127.0.0.1"}}
	got, warnings,
		err := SandboxConfig(SandboxInput{Pod: pod, Attempt: 2, Node: testNode(),
		CgroupParent: "/kubepods/besteffort/podu-1"})
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	want := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: "web", Namespace: "shop", Uid: "u-1", Attempt: 2},
		Hostname:     "h.sub.shop.svc.cluster.local",
		LogDirectory: "/var/log/pods/shop_web_u-1",
		DnsConfig: &cri.DNSConfig{
			Servers:  []string{"10.96.0.10"},
			Searches: []string{"shop.svc.cluster.local", "svc.cluster.local", "cluster.local", "example.com"},
			Options:  []string{"ndots:5"},
		},
		PortMappings: []*cri.PortMapping{{Protocol: cri.Protocol_UDP, ContainerPort: 53, HostPort: 5353,
			HostIp: "127.0.0.1"}},
		Labels: map[string]string{"app": "web", "io.kubernetes.pod.name": "web",
			"io.kubernetes.pod.namespace": "shop", "io.kubernetes.pod.uid": "u-1"},
		Annotations: map[string]string{"note": "hi"},
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent: "/kubepods/besteffort/podu-1",
			Sysctls:      map[string]string{"net.core.somaxconn": "1"},
			Resources:    &cri.LinuxContainerResources{CpuPeriod: 100000, CpuShares: 2},
			SecurityContext: &cri.LinuxSandboxSecurityContext{
				NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER},
				Seccomp:          &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault},
			},
		},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	ephemeral := testPod()
	ephemeral.Spec.EphemeralContainers = []corev1.EphemeralContainer{{
		EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			Name: "debugger", SecurityContext: &corev1.SecurityContext{Privileged: new(true)},
		}}}
	if got, _, err := SandboxConfig(SandboxInput{Pod: ephemeral, Node: testNode()}); err != nil ||
		!got.Linux.SecurityContext.Privileged {
		t.Errorf("a privileged ephemeral container: %v, %v", got.GetLinux(), err)
	}
	wrong := testPod()
	wrong.Spec.SecurityContext = &corev1.PodSecurityContext{SupplementalGroups: []int64{1 << 32}}
	if _, _, err := SandboxConfig(SandboxInput{Pod: wrong, Node: testNode()}); err == nil {
		t.Error("a group that is not an id was passed on")
	}
	pod.Spec.HostUsers = new(false)
	if _, _, err := SandboxConfig(SandboxInput{Pod: pod, Node: testNode()}); !errors.Is(err, ErrUserNamespaces) {
		t.Errorf("L3.163: %v", err)
	}
}

// Host names (L3.145).
func TestHostname(t *testing.T) {
	long := strings.Repeat("a", 62) + ".b"
	tests := []struct {
		name     string
		change   func(*corev1.Pod)
		host     string
		domain   string
		kernel   string
		kernelEr string
	}{
		{"pod name", func(*corev1.Pod) {}, "web", "", "web", ""},
		{"long name", func(p *corev1.Pod) { p.Name = long }, strings.Repeat("a", 62), "", strings.Repeat("a", 62), ""},
		{"hostname", func(p *corev1.Pod) { p.Spec.Hostname, p.Spec.Subdomain = "h", "s" }, "h",
			"s.shop.svc.cluster.local", "h", ""},
		{"override", func(p *corev1.Pod) { p.Spec.HostnameOverride, p.Spec.Subdomain = new("o.x"), "s" }, "o.x", "",
			"o.x", ""},
		{"host network", func(p *corev1.Pod) { p.Spec.HostNetwork = true }, "web", "", "", ""},
		{"fqdn without subdomain", func(p *corev1.Pod) { p.Spec.SetHostnameAsFQDN = new(true) }, "web", "", "web", ""},
		{"fqdn too long", func(p *corev1.Pod) {
			p.Spec.Hostname, p.Spec.Subdomain, p.Spec.SetHostnameAsFQDN = strings.Repeat("h", 40), "s", new(true)
		}, strings.Repeat("h", 40), "s.shop.svc.cluster.local", "",
			"failed to construct FQDN from pod hostname and cluster domain, FQDN " + strings.Repeat("h", 40) +
				".s.shop.svc.cluster.local is too long (64 characters is the max, 65 characters requested)"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			pod := testPod()
			tc.change(pod)
			host, domain := Hostname(pod, "cluster.local")
			kernel, err := kernelHostname(pod, "cluster.local")
			if host != tc.host || domain != tc.domain || kernel != tc.kernel || (err == nil) != (tc.kernelEr == "") ||
				err != nil && err.Error() != tc.kernelEr {
				t.Errorf("got %q %q %q %v", host, domain, kernel, err)
			}
		})
	}
}

// The hosts file (L3.140, L3.141).
func TestHostsFile(t *testing.T) {
	const head = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n"
	pod, node := testPod(), testNode()
	pod.Spec.HostAliases = []corev1.HostAlias{{IP: "1.2.3.4", Hostnames: []string{"x", "y"}}}
	want := head + "10.1.0.2\tweb\nfd00::2\tweb\n\n# Entries added by HostAliases.\n1.2.3.4\tx\ty\n"
	hosts := func(ips []string) string {
		t.Helper()
		text, err := HostsFile(pod, node, ips)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if got := hosts([]string{"10.1.0.2", "fd00::2"}); got != want {
		t.Error(cmp.Diff(want, got))
	}
	pod.Spec.HostAliases, pod.Spec.Subdomain = nil, "s"
	if got, want := hosts([]string{"10.1.0.2"}), head+"10.1.0.2\tweb.s.shop.svc.cluster.local\tweb\n"; got != want {
		t.Error(cmp.Diff(want, got))
	}
	pod.Spec.HostNetwork = true
	if got, want := hosts(nil), "# Kubernetes-managed hosts file (host network).\n127.0.0.1 localhost\n"; got != want {
		t.Error(cmp.Diff(want, got))
	}
	own := corev1.Container{VolumeMounts: []corev1.VolumeMount{{MountPath: "/etc/hosts"}}}
	if managesHosts(pod, &own, nil) || !managesHosts(pod, &corev1.Container{}, nil) ||
		managesHosts(testPod(), &corev1.Container{}, nil) {
		t.Error("L3.140: whether the file is managed")
	}
}

// DNS policies and limits (L3.146, L3.147).
func TestDNS(t *testing.T) {
	many := func(n int, prefix string) []string {
		list := make([]string, n)
		for i := range list {
			list[i] = prefix + strings.Repeat("x", i)
		}
		return list
	}
	tests := []struct {
		name     string
		change   func(*corev1.Pod, *Node)
		want     *cri.DNSConfig
		warnings []string
	}{
		{"host network", func(p *corev1.Pod, _ *Node) { p.Spec.HostNetwork = true },
			&cri.DNSConfig{Servers: []string{"192.0.2.53"}, Searches: []string{"example.com"},
				Options: []string{"timeout:1"}}, nil},
		{"with host network", func(p *corev1.Pod, n *Node) {
			p.Spec.HostNetwork, p.Spec.DNSPolicy, n.Resolver.Searches = true, corev1.DNSClusterFirstWithHostNet, nil
		}, &cri.DNSConfig{Servers: []string{"10.96.0.10"},
			Searches: []string{"shop.svc.cluster.local", "svc.cluster.local", "cluster.local"},
			Options:  []string{"ndots:5"}}, nil},
		{"none and config", func(p *corev1.Pod, _ *Node) {
			p.Spec.DNSPolicy = corev1.DNSNone
			p.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1", "1.1.1.1"},
				Searches: []string{"a"},
				Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: new("1")}, {Name: "rotate"},
					{Name: "ndots", Value: new("2")}}}
		}, &cri.DNSConfig{Servers: []string{"1.1.1.1"}, Searches: []string{"a"},
			Options: []string{"ndots:2", "rotate"}}, nil},
		{"merge", func(p *corev1.Pod, _ *Node) {
			p.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1"},
				Searches: []string{"cluster.local", "b"},
				Options:  []corev1.PodDNSConfigOption{{Name: "ndots", Value: new("1")}}}
		}, &cri.DNSConfig{Servers: []string{"10.96.0.10", "1.1.1.1"},
			Searches: []string{"shop.svc.cluster.local", "svc.cluster.local", "cluster.local", "example.com", "b"},
			Options:  []string{"ndots:1"}}, nil},
		{"no cluster DNS", func(_ *corev1.Pod, n *Node) { n.ClusterDNS = nil },
			&cri.DNSConfig{Servers: []string{"192.0.2.53"}, Searches: []string{"example.com"},
				Options: []string{"timeout:1"}},
			[]string{`MissingClusterDNS pod: "web_shop(u-1)". kubelet does not have ClusterDNS IP configured and cannot create Pod using "ClusterFirst" policy. Falling back to "Default" policy.`}},
		{"limits", func(p *corev1.Pod, _ *Node) {
			p.Spec.DNSPolicy = corev1.DNSNone
			p.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1", "2.2.2.2", "3.3.3.3", "4.4.4.4"},
				Searches: many(33, "s")}
		}, &cri.DNSConfig{Servers: []string{"1.1.1.1", "2.2.2.2", "3.3.3.3"}, Searches: many(32, "s")},
			[]string{"DNSConfigForming Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: 1.1.1.1 2.2.2.2 3.3.3.3",
				"DNSConfigForming Search Line limits were exceeded, some search paths have been omitted, the applied search line is: " + strings.Join(many(32, "s"), " ")}},
		{"characters", func(p *corev1.Pod, _ *Node) {
			p.Spec.DNSPolicy = corev1.DNSNone
			p.Spec.DNSConfig = &corev1.PodDNSConfig{Searches: append(longest(8), strings.Repeat("b", 16), "c")}
		}, &cri.DNSConfig{Searches: append(longest(8), strings.Repeat("b", 16))},
			[]string{"DNSConfigForming Search Line limits were exceeded, some search paths have been omitted, the applied search line is: " +
				strings.Join(append(longest(8), strings.Repeat("b", 16)), " ")}},
		{"a domain that is too long", func(p *corev1.Pod, _ *Node) {
			p.Spec.DNSPolicy = corev1.DNSNone
			p.Spec.DNSConfig = &corev1.PodDNSConfig{Searches: []string{strings.Repeat("a", 254), "b"}}
		}, &cri.DNSConfig{Searches: []string{"b"}},
			[]string{"DNSConfigForming Search Line limits were exceeded, some search paths have been omitted, the applied search line is: b"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			pod, node := testPod(), testNode()
			tc.change(pod, node)
			got, warnings, err := dnsConfig(pod, node)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got, protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
			var texts []string
			for _, w := range warnings {
				texts = append(texts, w.Reason+" "+w.Message)
			}
			if diff := cmp.Diff(tc.warnings, texts); diff != "" {
				t.Error(diff)
			}
		})
	}
	r := ParseResolver(
		[]byte(
			"# c\nnameserver 1.1.1.1\nnameserver 8.8.8.8 ; x\nsearch old\nsearch a. b .\noptions ndots:2 rotate\nsortlist x\n"))
	if diff := cmp.Diff(Resolver{[]string{"1.1.1.1", "8.8.8.8"}, []string{"a", "b"}, []string{"ndots:2", "rotate"}},
		r); diff != "" {
		t.Error(diff)
	}
}

// longest are n domains of the greatest length, all different: with the blanks 254 n - 1 characters.
func longest(n int) []string {
	var list []string
	for i := range n {
		list = append(list, strings.Repeat(string(rune('a'+i)), maxSearchLength))
	}
	return list
}

func TestCheckResolver(t *testing.T) {
	for _, tt := range []struct {
		searches []string
		domain   string
		want     string
	}{
		{longest(8), "cluster.local", ""},
		{append(longest(8), strings.Repeat("b", 17)), "",
			"Resolv.conf file '/f' contains search line which length is more than allowed 2048 chars!"},
		{[]string{strings.Repeat("a", 254)}, "",
			`Resolv.conf file "/f" contains a search path which length is more than allowed 253 chars!`},
		{make([]string, 30), "cluster.local",
			"Resolv.conf file '/f' contains search line consisting of more than 29 domains!"},
		{make([]string, 30), "", ""},
		{make([]string, 33), "", "Resolv.conf file '/f' contains search line consisting of more than 32 domains!"},
	} {
		if got := CheckResolver("/f", Resolver{Searches: tt.searches}, tt.domain); got != tt.want {
			t.Errorf("%d domains: %q, want %q", len(tt.searches), got, tt.want)
		}
	}
}

func build(in ContainerInput) (*cri.ContainerConfig, error) {
	env, err := buildEnvironment(&in)
	if err != nil {
		return nil, err
	}
	return containerConfig(&in, env)
}

// Without quotas the kernel limits no CPU time: neither of containers, nor of sandboxes (S11.56). Shares stay.
func TestNoCPUQuota(t *testing.T) {
	pod := testPod()
	pod.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
		Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}}
	pod.Spec.Overhead = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	for quota, node := range map[int64]*Node{100_000: {}, -1: {NoCPUQuota: true}} {
		for name, r := range map[string]*cri.LinuxContainerResources{
			"container": ContainerResources(pod, &pod.Spec.Containers[0], node),
			"sandbox":   podResources(pod, node), "overhead": overheadResources(pod, node)} {
			if name == "sandbox" && quota > 0 {
				quota += 100_000 // with the overhead
			}
			if r.CpuQuota != quota || r.CpuShares < 1024 {
				t.Errorf("%s: quota %d, want %d, shares %d", name, r.CpuQuota, quota, r.CpuShares)
			}
			if name == "sandbox" && quota > 0 {
				quota -= 100_000
			}
		}
	}
}
