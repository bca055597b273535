// Estimates one model with gguf-parser-go: prints the bytes on the device and the milliseconds that it took.
//
//	parser FILE CONTEXT
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	parser "github.com/gpustack/gguf-parser-go"
)

func main() {
	context, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	began := time.Now()
	file, err := parser.ParseGGUFFile(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	run := file.EstimateLLaMACppRun(
		parser.WithLLaMACppContextSize(int32(context)),
		parser.WithFlashAttention(),
		parser.WithinLLaMACppMaxContextSize(),
	)
	item := run.SummarizeItem(true, 0, 0)
	_ = json.NewEncoder(os.Stdout).Encode(map[string]any{
		"device":       uint64(item.VRAMs[0].NonUMA),
		"milliseconds": float64(time.Since(began).Microseconds()) / 1000,
	})
}
