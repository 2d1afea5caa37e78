//go:build ignore

// Gen copies YAML documents from the standard input to the standard output as lines of JSON. JSON is parsed in a tenth
// of the time, which is part of each start with a gateway.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"log"
	"os"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

func main() {
	in, out := utilyaml.NewYAMLReader(bufio.NewReader(os.Stdin)), bufio.NewWriter(os.Stdout)
	for {
		document, err := in.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			log.Fatal("read the documents: ", err)
		}
		line, err := yaml.YAMLToJSONStrict(document)
		if err != nil {
			log.Fatal("convert a document: ", err)
		}
		if bytes.Equal(line, []byte("null")) {
			continue
		}
		if _, err := out.Write(append(line, '\n')); err != nil {
			log.Fatal("write a document: ", err)
		}
	}
	if err := out.Flush(); err != nil {
		log.Fatal("write the documents: ", err)
	}
}
