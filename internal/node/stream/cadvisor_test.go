package stream

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The traffic of a pod is that of each of its interfaces, the default one once.
func TestNetworkFamilies(t *testing.T) {
	n := func(v uint64) *cri.UInt64Value { return &cri.UInt64Value{Value: v} }
	eth := &cri.NetworkInterfaceUsage{Name: "eth0", RxBytes: n(10), TxBytes: n(20), TxErrors: n(0)}
	f := families{}
	f.network(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}}, &cri.PodSandboxStats{
		Attributes: &cri.PodSandboxAttributes{Id: "sb"},
		Linux: &cri.LinuxPodSandboxStats{Network: &cri.NetworkUsage{
			DefaultInterface: eth, Interfaces: []*cri.NetworkInterfaceUsage{eth, {Name: "net1", RxBytes: n(1)}},
		}},
	})
	f.network(&corev1.Pod{}, &cri.PodSandboxStats{})
	var text strings.Builder
	f.write(&text)
	const want = `# HELP container_network_receive_bytes_total Cumulative count of bytes received
# TYPE container_network_receive_bytes_total counter
container_network_receive_bytes_total{container="",id="sb",image="",interface="eth0",name="sb",namespace="ns",pod="web"} 10
container_network_receive_bytes_total{container="",id="sb",image="",interface="net1",name="sb",namespace="ns",pod="web"} 1
# HELP container_network_transmit_bytes_total Cumulative count of bytes transmitted
# TYPE container_network_transmit_bytes_total counter
container_network_transmit_bytes_total{container="",id="sb",image="",interface="eth0",name="sb",namespace="ns",pod="web"} 20
# HELP container_network_transmit_errors_total Cumulative count of errors encountered while transmitting
# TYPE container_network_transmit_errors_total counter
container_network_transmit_errors_total{container="",id="sb",image="",interface="eth0",name="sb",namespace="ns",pod="web"} 0
`
	if text.String() != want {
		t.Error(text.String())
	}
}
