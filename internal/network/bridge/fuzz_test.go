package bridge

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

// FuzzJournal reads attachments from a damaged disk.
func FuzzJournal(f *testing.F) {
	f.Add([]byte(`{"sandbox":"a","uid":"u","ip":"10.88.0.2"}` + "\n" + `{"sandbox":"a"}` + "\n" + `{"sand`))
	f.Add([]byte("\n\n\x00\xff{}\n[]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		name := filepath.Join(t.TempDir(), "j")
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
		var first, second []entry
		if err := readJournal(name, func(e entry) { first = append(first, e) }); err != nil {
			return
		}
		j, err := rewriteJournal(name, first)
		if err != nil {
			t.Fatal(err)
		}
		j.close()
		if err := readJournal(name, func(e entry) { second = append(second, e) }); err != nil ||
			len(first) != len(second) {
			t.Fatalf("%d entries, then %d, %v", len(first), len(second), err)
		}
		for i := range first {
			if !reflect.DeepEqual(first[i], second[i]) {
				t.Errorf("%+v, then %+v", first[i], second[i])
			}
		}
	})
}
