package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"

	"carob/internal/base/testwait"
	"carob/test/devicedriver"
)

// A driver taints devices: a pod whose claim does not tolerate that is evicted, with an event; one that tolerates it
// stays, and no new pod gets the device. A DeviceTaintRule does the same from outside, and its status shows when it is
// done (S9.62, S9.63). When the taints are removed, pods get the devices again.
func TestDeviceTaints(t *testing.T) {
	nativeOnly(t, "CDI")
	t.Parallel()
	c := startCluster(t, "--registry-config", mirrors.dir)
	ctx := t.Context()
	driver := fmt.Sprintf("taints-%d.example.com", os.Getpid())
	d, err := devicedriver.Start(ctx, devicedriver.Config{Name: driver, Node: c.NodeName, Kubeconfig: c.Kubeconfig,
		KubeletDir: c.KubeletDir, CDIDir: "/var/run/cdi", Devices: []string{"gpu-0", "gpu-1", "gpu-2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Stop()
	claim := func(name, more string) string {
		return `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: ` + name + `}
spec: {selectors: [{cel: {expression: 'device.driver == "` + driver + `"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: ` + name + `}
spec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: ` + name + more + `}}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: ` + name + `, labels: {app: taints}}
spec:
  terminationGracePeriodSeconds: 0
  resourceClaims: [{name: mine, resourceClaimTemplateName: ` + name + `}]
  containers:
  - {name: c, image: busybox, command: [sleep, "1000"], resources: {claims: [{name: mine}]}}
---
`
	}
	tolerates := `, tolerations: [{key: example.com/broken, operator: Exists, effect: NoExecute}]`
	c.kubectlIn(t, claim("strict", "")+claim("tolerant", tolerates)+claim("other", ""),
		"apply", "-f", "-")
	has := map[string]string{}
	for _, pod := range []string{"strict", "tolerant", "other"} {
		c.wait(t, "pod/"+pod, "condition=Ready")
		has[pod] = c.kubectl(t, "get", "resourceclaims", "-o", `jsonpath={.items[?(@.status.reservedFor[0].name=="`+pod+
			`")].status.allocation.devices.results[0].device}`)
	}
	broken := []resourcev1.DeviceTaint{{Key: "example.com/broken", Effect: resourcev1.DeviceTaintEffectNoExecute}}
	if err := d.Publish(ctx, map[string][]resourcev1.DeviceTaint{has["strict"]: broken,
		has["tolerant"]: broken}); err != nil {
		t.Fatal(err)
	}
	c.gone(t, "pod/strict")
	c.hasEvents(t, "strict", "Normal DeviceTaintManagerEviction Marking for deletion")
	c.kubectlIn(t, claim("late", ""), "apply", "-f", "-") // two devices are taken, the third is broken
	c.hasEvents(t, "late", "cannot allocate all claims")

	c.kubectlIn(t, `
apiVersion: resource.k8s.io/v1
kind: DeviceTaintRule
metadata: {name: recall}
spec:
  deviceSelector: {driver: `+driver+`, pool: `+c.NodeName+`, device: `+has["other"]+`}
  taint: {key: example.com/recalled, effect: NoExecute}
`, "apply", "-f", "-")
	c.gone(t, "pod/other")
	c.shows(t, []string{"False Completed"}, "get", "devicetaintrule", "recall", "-o",
		`jsonpath={range .status.conditions[?(@.type=="EvictionInProgress")]}{.status} {.reason}{end}`)
	if p := c.pod(t, "tolerant"); p.DeletionTimestamp != nil || p.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the pod that tolerates the taint: %+v", p.Status)
	}
	if err := d.Publish(ctx, nil); err != nil {
		t.Fatal(err)
	}
	c.wait(t, "pod/late", "condition=Ready")
	c.kubectl(t, "delete", "devicetaintrule", "recall")
	c.kubectl(t, "delete", "pod", "-l", "app=taints")
	c.gone(t, "resourceclaims")
	testwait.Until(t, "nothing of the claims is left", func() error { // pods without a grace end after they are gone
		left, err := filepath.Glob("/var/run/cdi/" + driver + "-*")
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("there is %q", left)
		}
		return err
	})
}

// A driver of ResourceClaims made with upstream's helper, and a device plugin, on a real cluster: containers get their
// variables by CDI, by a class as an extended resource, and by the plugin; what they have survives a restart of carob;
// a pod waits for a device; drivers undo what they prepared.
func TestDevices(t *testing.T) {
	nativeOnly(t, "CDI")
	t.Parallel()
	c := startCluster(t, "--registry-config", mirrors.dir)
	ctx := t.Context()
	driver := fmt.Sprintf("driver-%d.example.com", os.Getpid())
	d, err := devicedriver.Start(ctx, devicedriver.Config{Name: driver, Node: c.NodeName, Kubeconfig: c.Kubeconfig,
		KubeletDir: c.KubeletDir, CDIDir: "/var/run/cdi", Devices: []string{"gpu-0", "gpu-1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Stop()
	plugin, err := devicedriver.StartPlugin(ctx, c.KubeletDir, "plugin.example.com/fpga", "f0", "f1")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { plugin.Stop() }()
	c.kubectlIn(t, `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu}
spec:
  extendedResourceName: example.com/gpu
  selectors: [{cel: {expression: 'device.driver == "`+driver+`" && device.attributes["`+driver+`"].model == "test"'}}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: gpu}
spec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: gpu}}]}}}
`, "apply", "-f", "-")
	pod := func(name, resources, more string) string {
		return `
apiVersion: v1
kind: Pod
metadata: {name: ` + name + `}
spec:
  terminationGracePeriodSeconds: 0
  ` + more + `
  containers:
  - {name: c, image: busybox, command: [sh, -c, 'env | grep DEVICE; ls -l /dev/test-device; sleep 1000'], resources: ` +
			resources + `}
---
`
	}
	claim := "resourceClaims: [{name: mine, resourceClaimTemplateName: gpu}]"
	c.shows(t, []string{"2"}, "get", "node", c.NodeName, "-o",
		`jsonpath={.status.allocatable.plugin\.example\.com/fpga}`)
	c.kubectlIn(t, pod("claimed", "{claims: [{name: mine}]}", claim)+
		pod("extended", "{limits: {example.com/gpu: 1}}", "")+
		pod("plugged", "{limits: {plugin.example.com/fpga: 1}}", ""), "apply", "-f", "-")
	c.wait(t, "pod/claimed", "condition=Ready")
	c.wait(t, "pod/extended", "condition=Ready")
	c.wait(t, "pod/plugged", "condition=Ready")
	c.shows(t, []string{"CLAIM_DEVICE_GPU_", "=" + c.NodeName}, "logs", "claimed")
	c.shows(t, []string{"CLAIM_DEVICE_GPU_", "=" + c.NodeName}, "logs", "extended")
	c.shows(t, []string{"PLUGIN_DEVICES=f", "crw"}, "logs", "plugged")
	c.shows(t, []string{"allocated,reserved"}, "get", "resourceclaims")

	c.kubectlIn(t, pod("waits", "{claims: [{name: mine}]}", claim), "apply", "-f", "-")
	c.hasEvents(t, "waits", "cannot allocate all claims")

	// carob starts again: nothing of what runs changes; the plugin has to register again, and until then a pod waits.
	c.carob(t, "down")
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
	plugin.Stop()
	if plugin, err = devicedriver.StartPlugin(ctx, c.KubeletDir, "plugin.example.com/fpga", "f0", "f1"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"claimed", "extended", "plugged"} {
		if p := c.pod(t, name); p.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("%s was restarted", name)
		}
	}
	c.kubectlIn(t, pod("second", "{limits: {plugin.example.com/fpga: 1}}", ""), "apply", "-f", "-")
	c.wait(t, "pod/second", "condition=Ready")
	if a, b := c.kubectl(t, "logs", "plugged"), c.kubectl(t, "logs", "second"); strings.Contains(a, "=f0") ==
		strings.Contains(b, "=f0") {
		t.Errorf("both have the same device: %s, %s", a, b)
	}

	c.kubectl(t, "delete", "pod", "claimed") // and its claim with it
	c.wait(t, "pod/waits", "condition=Ready")
	c.kubectl(t, "delete", "pod", "waits", "extended", "plugged", "second")
	c.gone(t, "resourceclaims")
	testwait.Until(t, "the driver undoes what it prepared", func() error {
		if calls := d.Calls(); strings.Count(calls, "unprepare") < 3 {
			return fmt.Errorf("calls: %s", calls)
		}
		return nil
	})
}
