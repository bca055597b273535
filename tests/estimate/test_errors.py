from estimate import errors


def test_the_table_of_errors_is_of_the_data_that_is_committed() -> None:
    page = errors.PAGE.read_text()
    assert f"{errors.START}<!-- {errors.digest()} -->" in page, "run: make errors"
    assert errors.END in page
