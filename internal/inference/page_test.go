package inference

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"unsafe"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"carob/internal/core/routing"
)

const vllmPage = `# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="base"} 7.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="base"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="base"} 0.25
vllm:cache_config_info{block_size="16",num_gpu_blocks="2048",note="a \"quoted\" {word}, \\ and \n"} 1.0
vllm:lora_requests_info{max_lora="2",running_lora_adapters="old",waiting_lora_adapters=""} 1.7e+09
vllm:lora_requests_info{max_lora="4",running_lora_adapters="sql, chat",waiting_lora_adapters="math"} 1.8e+09
vllm:time_to_first_token_seconds_bucket{le="0.001"} 0
`

// The names of adapters stay for long: they must not keep the page with them in memory.
func TestNamesOfAdaptersAreCopies(t *testing.T) {
	list := []byte("one, two," + strings.Repeat("x", 300))
	names := adapterNames(list)
	if fmt.Sprint(names) != "[one two]" {
		t.Fatal(names)
	}
	clear(list)
	n := testing.AllocsPerRun(10, func() { adapterNames(make([]byte, 0, 1)) })
	if fmt.Sprint(names) != "[one two]" || n > 1 {
		t.Errorf("%v, %v allocations", names, n)
	}
	from := uintptr(unsafe.Pointer(unsafe.StringData(names[0])))
	to := uintptr(unsafe.Pointer(unsafe.StringData(names[1])))
	if to-from == uintptr(len("one, ")) {
		t.Error("the names share the memory of the list")
	}
}

// engineOf is the engine of a pod with a label.
func engineOf(name string) *routing.Engine {
	e, _, _ := routing.DefaultConfig().Engine(map[string]string{routing.OldEngineLabel: name})
	return e
}

// Each engine has its names (2.3).
func TestPages(t *testing.T) {
	for _, c := range []struct {
		engine, page string
		want         routing.Stats
	}{
		{"vllm", vllmPage, routing.Stats{Waiting: 3, Running: 7, CacheUse: 0.25, Active: []string{"sql", "chat"},
			Queued: []string{"math"}, MaxAdapters: 4, BlockTokens: 16, Blocks: 2048}},
		{"", "vllm:num_requests_waiting 1\nvllm:gpu_cache_usage_perc 0.5\n", routing.Stats{Waiting: 1, CacheUse: 0.5}},
		{"vllm", "vllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc 0.5", routing.Stats{CacheUse: 0.5}},
		{"vllm", "vllm:kv_cache_usage_perc 0.5\nvllm:gpu_cache_usage_perc 0.9", routing.Stats{CacheUse: 0.5}},
		{"vllm", "vllm:num_requests_waiting{engine=\"0\"} 1 1700000000\r\nvllm:num_requests_waiting{engine=\"1\"} 2\r\n" +
			"vllm:kv_cache_usage_perc{engine=\"0\"} 0.7\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.2\n",
			routing.Stats{Waiting: 3, CacheUse: 0.7}},
		{"sglang", "sglang:num_queue_reqs 2\nsglang:num_running_reqs 9\nsglang:token_usage 0.5\n" +
			"sglang:cache_config_info{page_size=\"64\",num_pages=\"100\"} 1\n",
			routing.Stats{Waiting: 2, Running: 9, CacheUse: 0.5, BlockTokens: 64, Blocks: 100}},
		{"triton", "nv_trt_llm_request_metrics{model=\"m\",request_type=\"waiting\",version=\"1\"} 4\n" +
			"nv_trt_llm_request_metrics{request_type=\"scheduled\"} 5\nnv_trt_llm_request_metrics{request_type=\"max\"} 512\n" +
			"nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"fraction\"} 0.5\n" +
			"nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"tokens_per\"} 64\n" +
			"nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"max\"} 1000\n",
			routing.Stats{Waiting: 4, Running: 5, CacheUse: 0.5, BlockTokens: 64, Blocks: 1000}},
		{"trtllm-serve", "trtllm_num_requests_waiting 1\ntrtllm_num_requests_running 2\ntrtllm_kv_cache_utilization 0.3\n" +
			"trtllm_kv_cache_tokens_per_block 32\ntrtllm_kv_cache_max_blocks 9\n",
			routing.Stats{Waiting: 1, Running: 2, CacheUse: 0.3, BlockTokens: 32, Blocks: 9}},
	} {
		got, err := page([]byte(c.page), engineOf(c.engine))
		if err != nil || fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %+v, %v, want %+v", c.engine, got, err, c.want)
		}
	}
}

// A configuration can add engines, and the label that names them.
func TestOwnEngines(t *testing.T) {
	c, err := ReadConfig([]byte(`
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: core-metrics-extractor
  parameters:
    engineLabelKey: example.com/engine
    defaultEngine: mine
    engineConfigs:
    - name: mine
      queuedRequestsSpec: my_requests{state=waiting,kind="llm"}
      runningRequestsSpec: my_requests{state="running"}
      kvUsageSpec: my_cache
      loraSpec: my_adapters
      cacheInfoSpec: my_info
      cacheBlockSizeLabelName: size
- type: queue-scorer
`))
	if err != nil {
		t.Fatal(err)
	}
	e, name, known := c.Engine(map[string]string{routing.EngineLabel: "sglang"})
	if name != "mine" || !known {
		t.Fatalf("%s, %t", name, known)
	}
	const text = `my_requests{kind="llm",state="waiting"} 3
my_requests{kind="image",state="waiting"} 30
my_requests{state="running"} 4
my_cache 0.5
my_info{size="32",num_gpu_blocks="7"} 1
my_adapters{max_lora="2",running_lora_adapters="a"} 1
`
	want := routing.Stats{Waiting: 3, Running: 4, CacheUse: 0.5, BlockTokens: 32, Blocks: 7, MaxAdapters: 2,
		Active: []string{"a"}}
	if got, err := page([]byte(text), e); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%+v, %v", got, err)
	}
	if e, name, known := c.Engine(map[string]string{"example.com/engine": "sglang"}); e.Name != "sglang" || !known {
		t.Errorf("%s, %t", name, known)
	}
	if e, name, known := c.Engine(map[string]string{"example.com/engine": "new"}); e.Name != "mine" || known {
		t.Errorf("%s, %t", name, known)
	}
	for _, text := range []string{"a: b: c", "kind: EndpointPickerConfig\nkind: EndpointPickerConfig", ""} {
		if _, err := ReadConfig([]byte(text)); err == nil {
			t.Errorf("%q is read", text)
		}
	}
}

// Impossible metrics of a hostile or broken server are refused as a whole.
func TestImpossibleMetricsAreRefused(t *testing.T) {
	for _, value := range []string{"NaN", "-1", "+Inf", "-Inf", "1e300", "99999999999", "", "x", "0x", "1_0"} {
		for _, text := range []string{
			"vllm:num_requests_waiting{a=\"b\"} " + value + "\nvllm:kv_cache_usage_perc 0.1\n",
			"vllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc " + value + "\n",
			"vllm:num_requests_waiting 1\nvllm:lora_requests_info{max_lora=\"" + value + "z\"} 1\n"} {
			got, err := page([]byte(text), engineOf("vllm"))
			if _, ok := errors.AsType[nonsense](err); !ok {
				t.Errorf("%q: %+v, %v", text, got, err)
			}
		}
	}
	for _, text := range []string{"", "vllm:num_requests_running 1\n", "sglang:num_queue_reqs 1\n", "<html>"} {
		if got, err := page([]byte(text), engineOf("vllm")); !errors.Is(err, errNoLoad) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	many := "vllm:num_requests_waiting 1\nvllm:lora_requests_info{running_lora_adapters=\"" +
		strings.Repeat("a,", 5000) + strings.Repeat("b", 300) + "\"} 1\n"
	if got, err := page([]byte(many), engineOf("vllm")); err != nil || len(got.Active) != mostAdapters {
		t.Errorf("%d adapters, %v", len(got.Active), err)
	}
}

// What this parser reads is what Prometheus's own reads.
func TestPagesAsPrometheusReadsThem(t *testing.T) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(vllmPage))
	if err != nil {
		t.Fatal(err)
	}
	got, err := page([]byte(vllmPage), engineOf("vllm"))
	if err != nil {
		t.Fatal(err)
	}
	value := func(name string) float64 {
		return slices.MaxFunc(families[name].GetMetric(), func(a, b *dto.Metric) int {
			return int(of(a) - of(b))
		}).GetGauge().GetValue() + of(families[name].GetMetric()[0])
	}
	if value("vllm:num_requests_waiting") != float64(got.Waiting) || value("vllm:num_requests_running") !=
		float64(got.Running) || value("vllm:kv_cache_usage_perc") != got.CacheUse {
		t.Errorf("%+v", got)
	}
}

func of(m *dto.Metric) float64 { return m.GetUntyped().GetValue() }

// Whatever a server sends: no panic, and only numbers that can be.
func FuzzPage(f *testing.F) {
	f.Add(vllmPage, "vllm")
	f.Add("sglang:num_queue_reqs{a=\"\\\"} 2", "sglang")
	f.Add("nv_trt_llm_request_metrics{request_type=\"waiting\"", "triton")
	f.Fuzz(func(t *testing.T, text, kind string) {
		s, err := page([]byte(text), engineOf(kind))
		if err != nil {
			return
		}
		if s.Waiting < 0 || s.Waiting > mostRequests || s.Running < 0 || s.Running > mostRequests ||
			!(s.CacheUse >= 0 && s.CacheUse <= 1) || math.IsNaN(s.CacheUse) || s.Blocks < 0 || s.BlockTokens < 0 ||
			s.MaxAdapters < 0 || len(s.Active) > mostAdapters || len(s.Queued) > mostAdapters {
			t.Errorf("%+v", s)
		}
	})
}

// bigPage is like that of a real server: about 35 KB.
func bigPage() []byte {
	var b bytes.Buffer
	for i := range 400 {
		fmt.Fprintf(&b, "vllm:request_prompt_tokens_bucket{engine=\"0\",le=\"%d\",model_name=\"meta-llama/x\"} %d\n", i, i)
	}
	b.WriteString(vllmPage)
	return b.Bytes()
}

func BenchmarkPage(b *testing.B) {
	text := bigPage()
	b.ReportAllocs()
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := page(text, engineOf("vllm")); err != nil {
			b.Fatal(err)
		}
	}
}
