package modelbody

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// scan reads a body in pieces of a size.
func scan(body []byte, size int) (*Scanner, error) {
	s := &Scanner{}
	for n := size; ; n += size {
		if err := s.Scan(body[:min(n, len(body))]); err != nil {
			return s, err
		}
		if n >= len(body) {
			return s, s.Close()
		}
	}
}

func TestFacts(t *testing.T) {
	body := []byte(`{ "messages" : [{"role":"user","content":"a \"model\": \"x\" {["}], "tools":[1],
		"mod\u0065l":"m\u00e4/1","stream":true,"stream_options":{"include_usage":true},"max_tokens":17,
		"cache_salt":"s","n":-1.5e+3,"nested":{"model":"other"},"system":"be kind","x":[{},[],null,false]}` + "\n ")
	for _, size := range []int{1, 2, 7, 64, 4096} {
		s, err := scan(body, size)
		if err != nil {
			t.Fatal(err)
		}
		if s.Model != "mä/1" || !s.Stream || !s.Usage || s.MaxTokens != 17 || s.Salt != "s" ||
			string(s.Prompt[2].Of(body)) != `[{"role":"user","content":"a \"model\": \"x\" {["}]` ||
			string(s.Prompt[1].Of(body)) != `"be kind"` || string(s.Prompt[0].Of(body)) != "[1]" {
			t.Errorf("%d: %+v", size, s.Facts)
		}
		before, name, rest := s.Rewritten(body, `new"one`)
		if got := string(bytes.Join([][]byte{before, name, rest}, nil)); got !=
			strings.Replace(string(body), `"m\u00e4/1"`, `"new\"one"`, 1) {
			t.Error(got)
		}
	}
}

func TestBadBodies(t *testing.T) {
	for body, want := range map[string]error{
		`[]`: errNotObject, `"model"`: errNotObject, `model=x`: errNotObject, ``: errShort, ` `: errShort,
		`{"model":"a"`: errShort, `{"model":"a`: errShort, `{"model":"a","model":"a"}`: errTwice,
		`{"model":"a","mod\u0065l":"b"}`: errTwice, `{"model":"a","Model":"b"}`: errTwice,
		`{"MODEL":"b","model":"a"}`: errTwice, `{"Model":"a","mODEl":"a"}`: errTwice, `{"model":1}`: errModel,
		`{"model":null}`:          errModel,
		`{"model":{"model":"x"}}`: errModel, `{"model":"` + strings.Repeat("x", MaxModel+1) + `"}`: errModel,
		"{\"model\":\"\xff\"}": errModel, `{"a":01}`: errSyntax, `{"a":1.}`: errSyntax, `{"a":tru}`: errSyntax,
		`{"a":1}{}`: errSyntax, `{"a":1,}`: errSyntax, `{'a':1}`: errSyntax, "{\"a\":\"\n\"}": errSyntax,
		`{"a":"\x"}`: errSyntax, `{"a":[1}`: errSyntax, `{"a":"\u00g0"}`: errSyntax,
		`{"a":` + strings.Repeat("[", MaxDepth): errDepth,
	} {
		for _, size := range []int{1, 1000000} {
			if _, err := scan([]byte(body), size); err == nil || !strings.HasPrefix(err.Error(), want.Error()) {
				t.Errorf("%.40s: %v, not %v", body, err, want)
			}
		}
	}
}

// FuzzScan compares with encoding/json: the same bodies are valid, and the model is the same.
func FuzzScan(f *testing.F) {
	for _, s := range []string{`{"model":"a","prompt":["x",1e9,-0.1E-2,{}],"stream":false}`, `{}`, `{"a":"\ud800"}`,
		`{"model":"a","model":"b"}`, `{"model":1}`, `{"":[[[]]],"b":{"c":null}} `, `{"a":0}`, `{"a":-}`, "{\"a\":\"\xff\"}",
		`{"Model":"x"}`, "\ufeff{}"} {
		f.Add([]byte(s), 3)
	}
	f.Fuzz(func(t *testing.T, body []byte, size int) {
		if size <= 0 || size > 1<<20 {
			size = 1
		}
		s, err := scan(body, size)
		whole, other := scan(body, len(body)+1)
		if fmt.Sprint(err) != fmt.Sprint(other) || s.Facts != whole.Facts {
			t.Fatalf("pieces of %d: %v %+v, not %v %+v", size, err, s.Facts, other, whole.Facts)
		}
		var fields map[string]json.RawMessage
		valid := json.Unmarshal(body, &fields) == nil && fields != nil
		switch {
		case err == nil && !valid:
			t.Fatal("accepted, but encoding/json does not")
		case err != nil && valid && (strings.HasPrefix(err.Error(), errSyntax.Error()) ||
			strings.HasPrefix(err.Error(), errShort.Error()) || strings.HasPrefix(err.Error(), errNotObject.Error())):
			t.Fatalf("%v, but encoding/json accepts it", err)
		case err != nil:
			return
		}
		raw, has := fields["model"]
		if has != s.HasModel {
			t.Fatalf("a model: %v, not %v", s.HasModel, has)
		}
		if has {
			var want string
			if json.Unmarshal(raw, &want) != nil || want != s.Model || !bytes.Equal(raw, s.ModelAt.Of(body)) {
				t.Fatalf("%q, not %q", s.Model, want)
			}
			before, name, rest := s.Rewritten(body, "other")
			var again struct {
				Model string `json:"model"`
			}
			changed := bytes.Join([][]byte{before, name, rest}, nil)
			if !json.Valid(changed) {
				t.Fatalf("rewritten to %q", changed)
			}
			_ = json.Unmarshal(changed, &again)
		}
	})
}

// Each byte stops the scanner where encoding/json would stop, at each place of a word, and no other byte does.
func TestSkip(t *testing.T) {
	for c := range 256 {
		for at := range 20 {
			body := bytes.Repeat([]byte{0xc3}, 24)
			body[at] = byte(c)
			want := len(body)
			if c == '"' || c == '\\' || c < ' ' {
				want = at
			}
			for from := range at + 1 {
				s := Scanner{at: from}
				if s.skip(body); s.at != want {
					t.Fatalf("byte %#x at %d, from %d: stopped at %d", c, at, from, s.at)
				}
			}
		}
	}
}

func TestUsage(t *testing.T) {
	long := strings.Repeat("data: {\"choices\":[{\"text\":\"x\"}]}\n\n", 2000)
	for name, c := range map[string]struct {
		answer string
		want   Usage
	}{
		"JSON": {`{"choices":[{"text":"\"usage\":{\"prompt_tokens\":9}"}],"usage":{"prompt_tokens":5,
			"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":3}}}`, Usage{5, 7, 3}},
		"a stream": {long + "data: {\"usage\": {\"prompt_tokens\":5,\"completion_tokens\":7}}\n\ndata: [DONE]\n\n",
			Usage{5, 7, 0}},
		"without": {long + "data: {\"usage\":null}\n\ndata: [DONE]\n\n", Usage{}},
		"responses": {long + `data: {"response":{"usage":{"input_tokens":5,"input_tokens_details":
			{"cached_tokens":1},"output_tokens":6}}}`, Usage{5, 6, 1}},
		"messages": {`data: {"message":{"usage":{"input_tokens":5,"output_tokens":1}}}` + long +
			`data: {"type":"message_delta","usage":{"output_tokens":6}}`, Usage{5, 6, 0}},
		"responses with metadata": {`data: {"response":{"usage":{"input_tokens":5,"output_tokens":6},"metadata":{"a":"` +
			strings.Repeat("x", 64<<10) + `"}}}` + "\n\n", Usage{5, 6, 0}},
		"a long answer before": {`{"choices":[{"text":"` + strings.Repeat("x", 64<<10) + `"}],"usage":{"prompt_tokens":5,` +
			`"completion_tokens":7},"kv_transfer_params":"` + strings.Repeat("y", 64<<10) + `"}`, Usage{5, 7, 0}},
		"a part of a name": {`{"usag":1,"\"usage":2,"usage_"usage":3,""usage":{"prompt_tokens":5}}`, Usage{5, 0, 0}},
		"other objects": {`{"usage":{"x":{"prompt_tokens":1,"cached_tokens":1},"y":[2,{"prompt_tokens":3}],"prompt_tokens":5,
			"input_tokens_details":{"x":{"cached_tokens":4}},"text":"}\"prompt_tokens\":9","completion_tokens":7 }}`,
			Usage{5, 7, 0}},
		"no plain numbers": {`{"usage":{"prompt_tokens":1.5,"completion_tokens":"7","cache_read_input_tokens":1e3}}`,
			Usage{}},
		"no end": {`{"usage":{"prompt_tokens":1,"x":"` + strings.Repeat("x", 2*usageBytes) + `{"usage":{"prompt_tokens":5}}`,
			Usage{5, 0, 0}},
		"a liar": {`{"usage":{"prompt_tokens":-5,"completion_tokens":99999999999999}}`, Usage{}},
		"cut":    {`{"usage":{"prompt_tokens":5`, Usage{}},
	} {
		for _, size := range []int{1, 100, 5000, 1 << 20} {
			var a Answer
			for p := []byte(c.answer); len(p) > 0; {
				n := min(size, len(p))
				a.Write(p[:n])
				p = p[n:]
			}
			if got := a.Usage(); got != c.want || a.Bytes != int64(len(c.answer)) {
				t.Errorf("%s in pieces of %d: %+v, not %+v", name, size, got, c.want)
			}
		}
	}
}

func BenchmarkScan(b *testing.B) {
	body := []byte(`{"model":"m","prompt":"` + strings.Repeat("lorem ipsum ", 220<<10/12) + `"}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := scan(body, 32<<10); err != nil {
			b.Fatal(err)
		}
	}
}

// Values that need no parser are decoded as encoding/json does.
func TestDecode(t *testing.T) {
	for _, text := range []string{`"a"`, `""`, `"\u00e4"`, "\"\xff\"", `"ä"`, "1", "0", "-1", "123456789", "1234567890",
		"1.5", "1e3", "99999999999999999999", "true", "false", "null", "{}", "[]", `"` + strings.Repeat("x", smallField-2) + `"`} {
		for _, into := range []func() any{func() any { return new(string) }, func() any { return new(int) },
			func() any { return new(bool) }} {
			got, want := into(), into()
			ok, err := decode([]byte(text), got), json.Unmarshal([]byte(text), want)
			if ok != (err == nil) || ok && !reflect.DeepEqual(got, want) {
				t.Errorf("%.20s into %T: %v %v, not %v %v", text, got, ok, got, err, want)
			}
		}
	}
	if decode([]byte(`"`+strings.Repeat("x", smallField)+`"`), new(string)) {
		t.Error("a large value was decoded")
	}
}

// Of many usages the last one counts, also if it says only a part. Nothing is allocated.
func TestManyUsages(t *testing.T) {
	var a Answer
	for i := range 1000 {
		a.Write(fmt.Appendf(nil, "data: {\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":%d}}\n\n", i+1))
	}
	a.Write([]byte(`data: {"usage":{"completion_tokens":1001}}`))
	if got, want := a.Usage(), (Usage{Input: 5, Output: 1001}); got != want {
		t.Errorf("%+v, not %+v", got, want)
	}
	part := []byte(strings.Repeat(`{"usage":`, 4096))
	if n := testing.AllocsPerRun(10, func() { a.Write(part) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// However an answer is split, its usage is the same.
func FuzzUsage(f *testing.F) {
	f.Add(`{"usage":{"prompt_tokens":5,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":3}}}`, 3)
	f.Add(`\"usage":{"usage":{"input_tokens":[1,2],"output_tokens":-6}}""usage"`, 1)
	f.Fuzz(func(t *testing.T, text string, size int) {
		var whole, parts Answer
		whole.Write([]byte(text))
		size = max(size, 1)
		for p := []byte(text); len(p) > 0; p = p[min(size, len(p)):] {
			parts.Write(p[:min(size, len(p))])
		}
		got, want := parts.Usage(), whole.Usage()
		least, most := min(got.Input, got.Output, got.Cached), max(got.Input, got.Output, got.Cached)
		if got != want || least < 0 || most >= mostTokens {
			t.Errorf("%+v in pieces of %d, %+v as a whole", got, size, want)
		}
	})
}
